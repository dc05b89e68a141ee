"""The command line: ``netless run``, ``netless doctor``, ``netless wrapper``.

Exit status of ``run``: the program's own, since the launcher becomes the
program; 125 when netless itself failed, 126 when the program could not be
executed, 127 when it was not found.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__, _launcher, _native
from ._errors import InheritedSocketError, NetworkIsolationUnavailable, without_hint
from ._isolation import Isolation
from ._popen import EXTENSION_MISSING, candidates, uses_wrapper

FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127


class _Parser(argparse.ArgumentParser):
    """Complains as the rest of netless does."""

    status = 2  # of a usage error; for `run`, 2 would look like the program's own

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        complain(message)
        raise SystemExit(self.status)


def complain(message: str, hint: str = "") -> None:
    """One error, and what to do about it, on stderr."""
    print(f"netless: error: {message}", file=sys.stderr)
    if hint:
        print(f"netless: hint: {hint}", file=sys.stderr)


def add_isolation_options(parser: argparse.ArgumentParser) -> None:
    """The flags that make an :class:`Isolation`."""
    group = parser.add_argument_group("isolation")
    group.add_argument(
        "--loopback", action="store_true", help="a private 127.0.0.1 and ::1, both up"
    )
    group.add_argument("--private", action="store_true", help="a network namespace of its own")
    group.add_argument(
        "--no-unix-sockets",
        dest="unix_sockets",
        action="store_false",
        help="refuse AF_UNIX sockets that lead outside as well",
    )
    group.add_argument("--map-root", action="store_true", help="be uid 0 inside")
    group.add_argument(
        "--mechanism",
        default="auto",
        metavar="M",
        help="auto (default), namespace, seatbelt, wrapper or filter",
    )
    group.add_argument(
        "--fallback", metavar="filter", help="use seccomp alone where namespaces are refused"
    )


def isolation_from(options: argparse.Namespace) -> Isolation:
    """The isolation that the flags ask for.

    Raises:
        ValueError: they contradict each other.
    """
    return Isolation(
        loopback=options.loopback,
        private=options.private,
        unix_sockets=options.unix_sockets,
        map_root=options.map_root,
        mechanism=options.mechanism,
        fallback=options.fallback,
    )


def make_parser() -> _Parser:
    """The parser of all sub-commands."""
    parser = _Parser(
        prog="netless",
        description="Run a program without any network, enforced by the operating system.",
    )
    parser.add_argument("--version", action="version", version=f"netless {__version__}")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a program without network",
        usage="netless run [options] -- PROGRAM [ARG ...]",
    )
    run.status = FAILED
    add_isolation_options(run)
    run.add_argument("command", nargs="+", metavar="PROGRAM", help="the program and its arguments")

    wrapper = commands.add_parser(
        "wrapper",
        help="print the external command that does the same",
        usage="netless wrapper [options] -- PROGRAM [ARG ...]",
    )
    add_isolation_options(wrapper)
    wrapper.add_argument(
        "--external",
        action="store_true",
        help="unshare or sandbox-exec, even where netless-exec is installed",
    )
    wrapper.add_argument("command", nargs="+", metavar="PROGRAM")

    doctor = commands.add_parser("doctor", help="does isolation work here, and if not, why")
    doctor.add_argument("--json", action="store_true", help="for machines")
    add_isolation_options(doctor)
    return parser


def _hand_over(isolation: Isolation, command: Sequence[str]) -> None:
    """Become netless-exec, which does the same sooner; comes back where it cannot be executed."""
    launcher = _launcher.find() if isolation.mechanism != "wrapper" else None
    if launcher is None:
        return
    for name in ("SIGPIPE", "SIGXFSZ"):  # the interpreter ignores them
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.execv(launcher, ["netless", *_launcher.command(launcher, command, isolation)[1:]])


def run(isolation: Isolation, command: Sequence[str]) -> int:
    """Become the program: isolate this process, then ``execve``. Comes back on failure only."""
    _hand_over(isolation, command)
    paths = candidates(command[0], None)
    if uses_wrapper(isolation):
        from . import _wrapper

        if isolation.mechanism != "wrapper":
            _wrapper.settle(isolation)
            print(f"netless: warning: {EXTENSION_MISSING}", file=sys.stderr)
        _wrapper.become(isolation, command, paths)
    request = _native.Request(command, paths, restore_signals=True)
    report = _native.execute(isolation, request)
    if not _native.is_ordinary(report):
        _native.raise_isolation_failure(report)
    complain(f"{command[0]}: {os.strerror(report.error)}")
    is_missing = isinstance(OSError(report.error, ""), (FileNotFoundError, NotADirectoryError))
    return NOT_FOUND if is_missing else NOT_EXECUTABLE


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    if arguments[:1] == ["run"]:
        parser.status = FAILED
    options = parser.parse_args(arguments)
    failed = FAILED if options.subcommand == "run" else 2
    try:
        isolation = isolation_from(options)
        if options.subcommand == "run":
            return run(isolation, options.command)
        if options.subcommand == "wrapper":
            import shlex

            from . import _wrapper

            native = not options.external
            print(shlex.join(_wrapper.wrapper_command(options.command, isolation, native=native)))
            return 0
        from . import doctor

        return doctor.main(isolation, as_json=options.json)
    except NetworkIsolationUnavailable as error:
        complain(without_hint(error), error.hint)
    except (InheritedSocketError, OSError, ValueError) as error:
        complain(str(error))
    return failed
