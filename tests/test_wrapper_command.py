"""wrapper_command: what it refuses, and check=True for hosts that start processes themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import Isolation, NetworkIsolationUnavailable
from support import PATIENCE, WITHOUT_EXTENSION, Listener, need

isolated = pytest.mark.isolated
EXTERNAL = pytest.mark.parametrize("native", [True, False], ids=["launcher", "external"])
CONNECT = (
    "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5);"
    "c.send(b'x'); c.recv(9)"
)


# ---- what cannot be meant ----


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("args", ["ls -l", b"ls -l", Path("ls"), None, 3, [3], ["ls", None]])
def test_arguments_of_another_type_are_a_type_error(args: object, check: bool) -> None:
    with pytest.raises(TypeError, match="args must be"):
        netless.wrapper_command(args, check=check)


@pytest.mark.parametrize("args", [[], (), iter(())])
def test_no_program_is_a_value_error(args: object) -> None:
    with pytest.raises(ValueError, match="program"):
        netless.wrapper_command(args)


@pytest.mark.parametrize("args", [["a\0b"], ["true", "a\0b"], [b"a\0b"]])
def test_null_bytes_are_a_value_error(args: list) -> None:
    with pytest.raises(ValueError, match="null byte"):
        netless.wrapper_command(args)


@pytest.mark.parametrize("isolation", [True, None, "private", {"private": True}, Isolation])
def test_isolation_of_another_type_is_a_type_error(isolation: object) -> None:
    with pytest.raises(TypeError, match="Isolation"):
        netless.wrapper_command(["true"], isolation)


@pytest.mark.parametrize("path", [b"/bin", ["/bin"], 3])
def test_path_of_another_type_is_a_type_error(path: object) -> None:
    with pytest.raises(TypeError, match="path"):
        netless.wrapper_command(["true"], check=True, path=path)


def test_everything_becomes_text() -> None:
    command = netless.wrapper_command(iter([b"a\xff", Path("b"), "c"]), native=False)
    assert command[-3:] == ["a\udcff", "b", "c"]


@pytest.mark.parametrize("mechanism", ["filter", "seatbelt"])
def test_external_command_is_not_another_mechanism(mechanism: str) -> None:
    """The control is the launcher, which can."""
    isolation = Isolation(mechanism=mechanism)
    with pytest.raises(NetworkIsolationUnavailable) as caught:
        netless.wrapper_command(["true"], isolation, native=False)
    assert mechanism in str(caught.value)
    if not WITHOUT_EXTENSION:
        assert mechanism in netless.wrapper_command(["true"], isolation)


# ---- check=True ----


def executable(path: Path, text: str = "#!/bin/sh\necho ran\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@isolated
@EXTERNAL
def test_checked_command_holds_the_absolute_path(native: bool, tmp_path: Path, monkeypatch) -> None:
    program = executable(tmp_path / "program")
    monkeypatch.setenv("PATH", f"/nowhere{os.pathsep}{tmp_path}")
    monkeypatch.chdir(tmp_path)
    for name in ("program", "./program", program, os.fsencode(program)):
        command = netless.wrapper_command([name, "-x"], native=native, check=True)
        assert os.path.isabs(command[-2])
        assert os.path.samefile(command[-2], program)
        assert command[-1] == "-x"
        assert subprocess.check_output(command, env={}, cwd="/", timeout=PATIENCE) == b"ran\n"
    assert netless.wrapper_command(["program"], native=native)[-1] == "program"  # the control


@isolated
def test_links_are_not_followed(tmp_path: Path) -> None:
    """The python of a virtual environment is a link, and is what it is by its name."""
    (tmp_path / "python").symlink_to(sys.executable)
    command = netless.wrapper_command(["python"], check=True, path=str(tmp_path))
    assert command[-1] == str(tmp_path / "python")


@isolated
@EXTERNAL
def test_blocks(native: bool, listener4: Listener) -> None:
    program = [sys.executable, "-c", CONNECT, str(listener4.port)]
    before = listener4.reached
    assert subprocess.call(program, timeout=PATIENCE) == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    command = netless.wrapper_command(program, native=native, check=True)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "Network is unreachable" in done.stderr
    assert listener4.reached == before


@isolated
@EXTERNAL
@pytest.mark.parametrize("name", ["no-such-program", "./no-such-program", "/no/such/program", ""])
def test_missing_program_is_what_subprocess_says(native: bool, name: str) -> None:
    with pytest.raises(OSError) as expected:
        subprocess.Popen([name])
    with pytest.raises(type(expected.value)) as caught:
        netless.wrapper_command([name], native=native, check=True)
    assert isinstance(caught.value, FileNotFoundError) or not name
    assert caught.value.filename == expected.value.filename == name
    assert str(caught.value) == str(expected.value)


@isolated
def test_program_that_cannot_be_executed_is_a_permission_error(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    (tmp_path / "folder").mkdir()
    for name in (plain, tmp_path / "folder"):
        with pytest.raises(PermissionError) as caught:
            netless.wrapper_command([name], check=True)
        assert caught.value.filename == str(name)
    with pytest.raises(PermissionError):
        netless.wrapper_command(["plain"], check=True, path=str(tmp_path))


@isolated
def test_program_is_looked_for_beyond_what_cannot_be_executed(tmp_path: Path) -> None:
    """As execvp does: a file of that name without the permission does not end the search."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    (first / "program").write_text("x")
    program = executable(second / "program")
    path = os.pathsep.join(map(str, (tmp_path / "missing", first, second)))
    assert netless.wrapper_command(["program"], check=True, path=path)[-1] == str(program)


@isolated
def test_path_is_searched_instead_of_the_environments(tmp_path: Path, monkeypatch) -> None:
    program = executable(tmp_path / "true")
    assert netless.wrapper_command(["true"], check=True)[-1] != str(program)
    found = netless.wrapper_command(["true"], check=True, path=str(tmp_path))
    assert found[-1] == str(program)
    with pytest.raises(FileNotFoundError):
        netless.wrapper_command(["cat"], check=True, path=str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = netless.wrapper_command(["true"], check=True, path=".")
    assert os.path.isabs(found[-1])
    assert os.path.samefile(found[-1], program)


@isolated
def test_what_is_required_is_what_the_command_does(monkeypatch, tmp_path: Path) -> None:
    """An external command that does not work is found out, whether or not the native way does."""
    netless.wrapper_command(["true"], native=False, check=True)  # the control
    executable(tmp_path / "unshare", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("NETLESS_WRAPPER", str(tmp_path / "unshare"))
    for options in ({"native": False}, {"isolation": Isolation(mechanism="wrapper")}):
        assert netless.wrapper_command(["true"], **options)
        with pytest.raises(NetworkIsolationUnavailable):
            netless.wrapper_command(["true"], check=True, **options)


def test_isolation_comes_before_the_program(monkeypatch) -> None:
    """Where nothing can be isolated, no other fault hides that."""
    monkeypatch.setenv("NETLESS_WRAPPER", "/no/such/unshare")
    for name in ("true", "no-such-program"):
        with pytest.raises(NetworkIsolationUnavailable) as caught:
            netless.wrapper_command([name], native=False, check=True)
        assert caught.value.cause == "wrapper-missing"


@isolated
@pytest.mark.native
def test_native_way_is_required_too(script) -> None:
    """Where the kernel refuses namespaces the command without a check is given all the same."""
    need("unshare")
    source = """
        import netless
        assert netless.wrapper_command(["true"])
        try:
            netless.wrapper_command(["true"], check=True)
        except netless.NetworkIsolationUnavailable as error:
            print(error.step)
        else:
            print("given")
    """
    assert script(source).stdout == "given\n"
    # A user namespace in which no further one may be made.
    limit = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    done = script(source, prefix=("unshare", "-Ur", "sh", "-c", limit, "sh"))
    assert done.stdout in ("unshare\n", "clone\n"), done.stderr
