"""MCP servers without network: parameters for the Python SDK's ``stdio_client``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .. import _isolation, _wrapper
from . import _host

_host.need("mcp", extra="mcp", majors=(1, 2))

from mcp import StdioServerParameters

__all__ = ["stdio_parameters"]


def stdio_parameters(
    command: str | os.PathLike[str],
    args: Iterable[str | os.PathLike[str]] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    isolation: _isolation.Isolation = _isolation.DEFAULT,
) -> StdioServerParameters:
    """What starts an MCP server without network, for ``mcp.stdio_client``.

    Isolation is required and the server looked up at once, so that both fail here and
    not as "Connection closed" in a session.

    Args:
        command: the server's program, looked up on the PATH of ``env`` where that has one,
            else on this process's; a relative path with a slash counts from ``cwd``.
        args: its arguments.
        env: variables on top of the few that the SDK passes on.
        cwd: its working directory.
        isolation: what to keep it from.

    Raises:
        TypeError: ``args`` is one string, or something is of a type that cannot be meant.
        NetworkIsolationUnavailable: a server cannot be isolated here.
        FileNotFoundError: there is no such program.
        PermissionError: the program may not be executed.
    """
    if isinstance(args, (str, bytes, os.PathLike)):
        raise TypeError(f"args must be a sequence of arguments, not {args!r}")
    program = os.fspath(command)
    if cwd is not None and os.sep in program:
        program = os.path.join(cwd, program)
    path = None if env is None else env.get("PATH")
    words = _wrapper.wrapper_command([program, *args], isolation, check=True, path=path)
    return StdioServerParameters(
        command=words[0],
        args=words[1:],
        env=None if env is None else dict(env),
        cwd=None if cwd is None else os.fspath(cwd),
    )
