"""The two exceptions: what they carry, how they read, that they survive pickling."""

from __future__ import annotations

import errno
import pickle
import socket
import subprocess

import pytest

import netless
from netless import InheritedSocketError, NetworkIsolationUnavailable

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
