"""run, call, check_output and the like find each other as subprocess's own do: by public names.

A test that replaces one of them, ``mock.patch("netless.Popen")``, must not run the real command.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest

import netless
from netless import CalledProcessError, Isolation, aio
from support import PATIENCE, need_module

pytestmark = pytest.mark.isolated
PAGE = Path(__file__).resolve().parent.parent / "docs" / "testing.md"
PRIVATE = Isolation(private=True)

FUNCTIONS = {
    "run": lambda module, *a, **k: module.run(*a, **k),
    "call": lambda module, *a, **k: module.call(*a, **k),
    "check_call": lambda module, *a, **k: module.check_call(*a, **k),
    "check_output": lambda module, *a, **k: module.check_output(*a, **k),
    "getoutput": lambda module, *a, **k: module.getoutput(*a, **k),
    "getstatusoutput": lambda module, *a, **k: module.getstatusoutput(*a, **k),
}
SHELL = ("getoutput", "getstatusoutput")
CALLABLE = ("Popen", "CompletedProcess", *FUNCTIONS)
VALUES = ("PIPE", "STDOUT")
EXCEPTIONS = ("CalledProcessError", "TimeoutExpired")


def plain_popen(calls: list[object], status: int, error: type[Exception] | None = None):
    """A Popen of a test: knows nothing of netless, and refuses what subprocess does not pass."""
    allowed = set(inspect.signature(subprocess.Popen).parameters)

    class Fake:
        returncode = status
        pid = 0

        def __init__(self, *args, **options) -> None:
            assert options.keys() <= allowed, options
            calls.append((args, options))
            self.args = args[0] if args else options["args"]

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

        def communicate(self, input=None, timeout=None):
            calls.append(("communicate", input, timeout))
            if error is not None:
                raise error(self.args, timeout)
            return "told\n", None

        def wait(self, timeout=None):
            calls.append(("wait", timeout))
            return status

        def poll(self):
            return status

        def kill(self) -> None:
            calls.append("kill")

    return Fake


def outcome(function: str, module: types.ModuleType, *args, **options) -> object:
    """What it returns or raises, comparable across the two modules."""
    try:
        return repr(FUNCTIONS[function](module, *args, **options))
    except Exception as error:
        return type(error).__name__, vars(error)


CALLS = [
    ("command", {}),
    ("command", {"shell": True, "cwd": "/"}),
    ("command", {"input": None}),
    ("command", {"input": b"text", "timeout": 3}),
    ("command", {"text": True, "stdout": 1}),
    ("command", {"capture_output": True, "check": True}),
    ("command", {"encoding": "ascii", "errors": "ignore"}),
    (None, {"args": "command"}),
]


def takes(function: str, options: dict) -> bool:
    """Is this a call that subprocess's own function has parameters for, on this Python?"""
    if function == "check_output" and sys.version_info < (3, 11):
        return "check" not in options  # a TypeError there, the ValueError of later ones here
    if function not in SHELL:
        return True
    return options.keys() <= inspect.signature(getattr(subprocess, function)).parameters.keys()


def traced(module, function: str, name: str, status: int, command, options) -> object:
    """What came out, and every call of the replaced name."""
    calls: list[object] = []
    fake = plain_popen(calls, status)
    replaced = mock.Mock(side_effect=getattr(module, name))
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(module, "Popen", fake))
        if name != "Popen" and name != function:
            stack.enter_context(mock.patch.object(module, name, replaced))
        arguments = () if command is None else (command,)
        found = outcome(function, module, *arguments, **options)
    return found, calls, [tuple(call) for call in replaced.mock_calls]


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("name", CALLABLE)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_who_calls_whom_and_with_what_is_as_in_subprocess(function, name, status) -> None:
    """Each function with each other name replaced, beside subprocess's own on this Python."""
    reached = 0
    for command, options in CALLS:
        if takes(function, options):
            theirs, ours = (
                traced(module, function, name, status, command, dict(options))
                for module in (subprocess, netless)
            )
            assert ours == theirs, (command, options)
            reached += bool(theirs[1])
    assert reached, "the control: subprocess called none either"


@pytest.mark.parametrize("name", ["run", "call", "check_output", "getstatusoutput"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_replaced_function_is_obeyed_where_subprocess_obeys_it(function, name, marker) -> None:
    """No Popen is replaced here: whoever does not ask for the replaced name runs the command."""
    answer = {"getstatusoutput": (0, "fake"), "check_output": "fake", "call": 0}
    done = netless.CompletedProcess("x", 0, "fake", "")
    command = f"echo ran >'{marker.path}'"
    options = {} if function in SHELL else {"shell": True}
    ran = []
    for module in (subprocess, netless):
        fake = mock.Mock(return_value=answer.get(name, done))
        with mock.patch.object(module, name, fake):
            getattr(module, function)(command, **options)
        ran.append(marker.written())
        marker.path.unlink(missing_ok=True)
        assert fake.called != ran[-1]
    assert ran[1] == ran[0]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("target", ["netless.Popen", "mypkg.subprocess.Popen"])
def test_a_replaced_popen_runs_nothing(target: str, function: str, marker, monkeypatch) -> None:
    mypkg = types.ModuleType("mypkg")
    exec("import netless as subprocess", vars(mypkg))
    monkeypatch.setitem(sys.modules, "mypkg", mypkg)
    command = f"echo ran >'{marker.path}'"
    options = {} if function in SHELL else {"shell": True}
    with mock.patch(target) as popen:
        popen.return_value.__enter__.return_value.communicate.return_value = ("", "")
        popen.return_value.__enter__.return_value.poll.return_value = 0
        popen.return_value.__enter__.return_value.wait.return_value = 0
        getattr(mypkg.subprocess, function)(command, **options)
        assert popen.called
        assert "isolation" not in popen.call_args.kwargs
    assert not marker.written()
    getattr(mypkg.subprocess, function)(command, **options)  # the control
    assert marker.written()


@pytest.mark.parametrize("start", ["exec", "shell"])
def test_a_replaced_popen_is_obeyed_by_the_event_loop(start: str, marker) -> None:
    """As asyncio's functions obey a replaced subprocess.Popen."""

    async def attempt(module) -> None:
        if start == "shell":
            process = await module.create_subprocess_shell(f"echo ran >'{marker.path}'")
        else:
            process = await module.create_subprocess_exec(*marker.command)
        await process.wait()

    class Replaced(Exception):
        pass

    for module, name in ((asyncio, "subprocess.Popen"), (aio, "netless.Popen")):
        with mock.patch(name, side_effect=Replaced), pytest.raises(Replaced):
            asyncio.run(attempt(module))
        assert not marker.written()
    asyncio.run(attempt(aio))  # the control
    assert marker.written()


@pytest.mark.parametrize("name", [*VALUES, *EXCEPTIONS])
def test_constants_and_exceptions_are_the_public_ones(name: str) -> None:
    """A replaced PIPE reaches Popen, a replaced exception is what is caught and raised."""

    class Own(getattr(netless, name) if name in EXCEPTIONS else object):
        pass

    def attempt(module):
        calls: list[object] = []
        error = Own if name == "TimeoutExpired" else None
        own = Own if name in EXCEPTIONS else "own"
        with (
            mock.patch.object(module, name, own),
            mock.patch.object(module, "Popen", plain_popen(calls, 3, error)),
        ):
            return [
                outcome("run", module, "x", capture_output=True, check=True, timeout=1),
                outcome("check_call", module, "x"),
                outcome("getoutput", module, "x") if error is None else None,
                calls,
            ]

    assert attempt(netless) == attempt(subprocess)


# ---- isolation= ----


@pytest.mark.parametrize("function", FUNCTIONS)
def test_isolation_is_passed_on_where_it_is_not_the_default(function: str) -> None:
    told = []

    class Noted(netless.Popen):
        def __init__(self, *args, **options) -> None:
            told.append(options.get("isolation", "none"))
            super().__init__(*args, **options)

    with mock.patch("netless.Popen", Noted):
        for options in ({}, {"isolation": Isolation()}, {"isolation": PRIVATE}):
            with contextlib.suppress(CalledProcessError):
                getattr(netless, function)("true", **options)
    assert told == ["none", "none", PRIVATE]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("wrong", [None, True, "private", mock.ANY])
def test_what_is_no_isolation_is_a_type_error(function: str, wrong, marker) -> None:
    with pytest.raises(TypeError, match=r"isolation must be a netless\.Isolation"):
        getattr(netless, function)(f"echo ran >'{marker.path}'", isolation=wrong)
    assert not marker.written()


@pytest.mark.native
@pytest.mark.parametrize("function", ["check_output", "getoutput"])
def test_isolation_is_in_force(function: str) -> None:
    """Private namespaces differ from each other, and both from the caller's."""
    link = "readlink /proc/self/ns/net"
    options = {"shell": True, "text": True} if function == "check_output" else {}
    found = {getattr(netless, function)(link, isolation=PRIVATE, **options) for _ in "ab"}
    found.add(subprocess.getoutput(link))
    assert len(found) == 3


# ---- what the page says ----

MODULE, *TESTS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(TESTS)))
def test_tests_of_the_page_pass_as_written(number: int, tmp_path: Path) -> None:
    """There is no git on the path: a command that was really run would not be found."""
    need_module("pytest_subprocess")
    (tmp_path / "mypkg.py").write_text(MODULE)
    (tmp_path / "test_page.py").write_text(TESTS[number])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PATH": "/nothing"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
