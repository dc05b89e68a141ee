"""The two exceptions: what they carry, how they read, that they survive pickling."""

from __future__ import annotations

import ast
import errno
import pickle
import socket
import subprocess
from pathlib import Path

import pytest

import netless
from netless import InheritedSocketError, NetworkIsolationUnavailable, _diagnosis, _wrapper
from support import is_plain

CLASS = "NetworkIsolationUnavailable"
CODE = "cave_sandbox_os_network_isolation_unavailable"


def test_text_begins_with_the_code_and_names_step_errno_and_hint() -> None:
    error = NetworkIsolationUnavailable("refused", "do this", step="unshare", errno=errno.EPERM)
    assert str(error).startswith(CODE + ": refused")
    for part in ("unshare", "EPERM", "Operation not permitted", "do this"):
        assert part in str(error)


def test_code_is_the_same_on_class_and_instance() -> None:
    assert NetworkIsolationUnavailable.code == NetworkIsolationUnavailable("x").code == CODE


def test_is_neither_an_os_error_nor_a_subprocess_error() -> None:
    assert issubclass(NetworkIsolationUnavailable, RuntimeError)
    assert not issubclass(NetworkIsolationUnavailable, (OSError, subprocess.SubprocessError))


def test_unavailable_survives_pickling() -> None:
    error = NetworkIsolationUnavailable("c", "h", step="s", errno=1, meaning="m")
    copy = pickle.loads(pickle.dumps(error))
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def test_summary_survives_pickling_and_is_never_empty() -> None:
    error = NetworkIsolationUnavailable("c", summary="It is refused.")
    assert pickle.loads(pickle.dumps(error)).summary == error.summary == "It is refused."
    for other in (
        NetworkIsolationUnavailable("c"),
        NetworkIsolationUnavailable("c", "h", step="s"),
    ):
        assert isinstance(other.summary, str)
        assert is_plain(other.summary)


def test_is_plain_knows_what_is_not() -> None:
    """The control of the tests below."""
    assert is_plain("The kernel, since Linux 5.12, refuses it.")
    for text in (
        *("", "no capital.", "No end", "Two. Sentences.", "A blocked-by-seccomp token.", "A_b."),
        *(f"{CODE}.", "The file /proc/self/status.", "A" + "b" * 24 + ".", 'Ask for mode="x".'),
    ):
        assert not is_plain(text)


FINDINGS = [
    each
    for value in vars(_diagnosis).values()
    for each in (value.values() if isinstance(value, dict) else [value])
    if isinstance(each, _diagnosis.Finding)
]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.cause)
def test_every_finding_has_its_sentence(finding) -> None:
    error = _diagnosis.unavailable(finding)
    assert is_plain(error.summary)
    assert error.summary != NetworkIsolationUnavailable("x").summary


def test_every_step_and_errno_has_its_sentence() -> None:
    for step in (*_diagnosis.PURPOSES, *_diagnosis.LAYER_REFUSED, "stale", "sandbox-init"):
        for number in (*errno.errorcode, 0, 9999):
            error = _diagnosis.explain(step, number, lambda flags: 0)
            assert is_plain(error.summary), (step, number, error.summary)


def test_other_errors_have_their_sentences() -> None:
    for error in (_diagnosis.unsupported_platform(), _diagnosis.has_threads(2)):
        assert is_plain(error.summary)
    for cause, complaint in (
        ("wrapper-too-old", b"unshare: unrecognized option '--map-current-user'"),
        ("refused", b"unshare: something else"),
    ):
        error = _wrapper._wrapper_failed(b"", complaint)
        assert error.cause == cause
        assert is_plain(error.summary)


def test_no_error_is_made_without_a_sentence() -> None:
    """Whoever adds a cause is to think of it."""
    made = 0
    for file in Path(netless.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == CLASS:
                assert "summary" in {keyword.arg for keyword in node.keywords}, (file, node.lineno)
                made += 1
    assert made > 4


def test_inherited_socket_error_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(InheritedSocketError(5, socket.AF_INET)))
    assert (copy.fd, copy.family) == (5, socket.AF_INET)
    assert "AF_INET" in str(copy)
    assert "5" in str(copy)


def test_another_platform_imports_and_raises_the_one_error(script) -> None:
    """Import works there, and every entry point refuses."""
    done = script(
        """
        import sys
        for system in ("win32", "freebsd14"):
            for name in [name for name in sys.modules if name.startswith("netless")]:
                del sys.modules[name]
            sys.platform = system
            sys.modules["netless._spawn"] = None
            import netless
            entries = [
                lambda: netless.Popen(["true"]),
                lambda: netless.run(["true"]),
                lambda: netless.call(["true"]),
                lambda: netless.check_call(["true"]),
                lambda: netless.check_output(["true"]),
                lambda: netless.getoutput("true"),
                lambda: netless.getstatusoutput("true"),
                lambda: netless.require(),
                lambda: netless.require(netless.Isolation(mechanism="wrapper")),
                lambda: netless.wrapper_command(["true"]),
            ]
            for entry in entries:
                try:
                    entry()
                except netless.NetworkIsolationUnavailable as error:
                    assert error.cause == "unsupported-platform", error
                    assert error.step is None
                else:
                    raise SystemExit(f"{system}: an entry point went through")
            assert not netless.probe().available
            assert netless.probe().error.cause == "unsupported-platform"
        print("refused")
        """
    )
    assert done.stdout == "refused\n", done.stderr


def test_isolation_must_be_an_isolation() -> None:
    with pytest.raises(TypeError, match="isolation"):
        netless.Popen(["true"], isolation="private")
