#!/usr/bin/env python3
"""Run CPython's own ``test.test_asyncio.test_subprocess`` with netless.aio put in.

    python cpython_asyncio.py [-k SUBSTRING] [-v]

The suite is the one that ships with the interpreter that runs this script.  It runs
twice: as it is, and with ``asyncio.create_subprocess_exec`` and
``create_subprocess_shell`` replaced, and ``subprocess_exec`` of the loops by what is
below them.

Prints one line per test that fails with netless and not with asyncio itself, then
the two counts.  Exit status 0 when there is no such test, 1 otherwise, 2 when the
suite is missing.
"""
from __future__ import annotations

import argparse
import asyncio
import errno
import io
import os
import sys
import threading
import unittest
import warnings
from unittest import mock

import netless.aio
from cpython_subprocess import flatten

# They say how asyncio does it, not what it does for its users.
LEFT_OUT = {
    "test_popen_error": "mocks subprocess.Popen, the base class here",
    "test_popen_error_with_stdin_pipe": "mocks subprocess.Popen, the base class here",
    "test_create_subprocess_fails_with_inactive_watcher": "counts calls of asyncio's child watcher",
    "SubprocessFastWatcherTests": "FastChildWatcher (deprecated, gone in 3.14) reaps every child "
    "of the process, those of subprocess and of netless too",
}


async def subprocess_exec(
    self, protocol_factory, program, *args, stdin=-1, stdout=-1, stderr=-1, **options
):
    protocol = protocol_factory()
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    transport = await netless.aio.connect(
        self, protocol, (program, *args), False, **streams, **options
    )
    return transport, protocol


def put_in() -> None:
    """From here on asyncio starts children by netless."""
    netless.aio.LINGER = 0  # the suite looks for threads right after each test
    for module in (asyncio, asyncio.subprocess):
        module.create_subprocess_exec = netless.aio.create_subprocess_exec
        module.create_subprocess_shell = netless.aio.create_subprocess_shell
    asyncio.base_events.BaseEventLoop.subprocess_exec = subprocess_exec


class Watchers:
    """Where the suite looks for the thread that waits for a child, since Python 3.14."""

    def get(self, pid):
        named = (thread for thread in threading.enumerate() if thread.name == f"netless-wait-{pid}")
        return next(named, None)

    def values(self):
        return []


def put_in_thread(module) -> None:
    """The tests of asyncio's waiting thread are to meet netless's, which needs a reason."""
    cls = module.SubprocessThreadedWatcherTests
    set_up = cls.setUp

    def without_pidfd(self):
        refused = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        patcher = mock.patch.object(os, "pidfd_open", side_effect=refused)
        patcher.start()
        self.addCleanup(patcher.stop)
        set_up(self)

    cls.setUp = without_pidfd
    watcher = getattr(asyncio.unix_events, "_ThreadedChildWatcher", None)
    if watcher is not None:
        watcher._threads = property(lambda self: Watchers(), lambda self, value: None)


def run(module, only: str, is_verbose: bool):
    chosen = unittest.TestSuite(
        test
        for test in flatten(unittest.defaultTestLoader.loadTestsFromModule(module))
        if only in test.id() and not LEFT_OUT.keys() & {type(test).__name__, test._testMethodName}
    )
    log = sys.stderr if is_verbose else io.StringIO()
    result = unittest.TextTestRunner(stream=log, verbosity=2).run(chosen)
    failures = {
        test.id(): [line for line in trace.splitlines() if line.strip()][-1]
        for test, trace in result.failures + result.errors
    }
    return result, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only tests whose id contains this")
    parser.add_argument("-v", action="store_true", help="print every test")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from test.test_asyncio import test_subprocess as module
    except ImportError as error:
        print(f"the interpreter ships no test suite: {error}", file=sys.stderr)
        return 2

    _, known = run(module, options.k, options.v)
    put_in()
    put_in_thread(module)
    result, failures = run(module, options.k, options.v)
    new = {name: line for name, line in failures.items() if name not in known}
    for name, line in new.items():
        print(f"FAILED {name}: {line[:160]}")
    skipped = len(result.skipped)
    print(
        f"python {sys.version.split()[0]} netless.aio: {result.testsRun} run, "
        f"{result.testsRun - len(failures) - skipped} passed, {len(failures)} failed "
        f"({len(known)} with asyncio's own), {skipped} skipped "
        f"(left out: {', '.join(LEFT_OUT)})"
    )
    return 1 if new or not result.testsRun else 0


if __name__ == "__main__":
    raise SystemExit(main())
