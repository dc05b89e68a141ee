#!/usr/bin/env python3
"""Run CPython's own tests of process pools and multiprocessing with netless put in.

    python cpython_pools.py [concurrent_futures] [fork] [spawn] [forkserver] [-k SUBSTRING]

Each suite runs twice, in processes of its own: with the standard library's
classes and with netless's.  Prints every test that fails with ours and not with
theirs, with the reason where it is a difference that docs/pools.md names, and a
line of counts per suite.  Exit status 0 when there is no other difference, 1
otherwise, 2 when the interpreter ships no test suite.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from cpython_subprocess import flatten

SUITES = ("concurrent_futures", "fork", "spawn", "forkserver")

# Parts of test names, and why they differ.
EXPECTED = {
    "TestRemoteManager": "the manager listens on TCP, which is to fail",
    "TestPicklingConnections.test_pickling": "a worker listens on TCP, which is to fail",
    "TestManagerRestart": "the manager listens on TCP, which is to fail",
    "TestTimeouts.test_timeout": "a worker connects over TCP, which is to fail",
    "TestWait.test_wait_socket": "workers connect over TCP, which is to fail",
    "TestListenerClient.test_listener_client": "a worker connects over TCP, which is to fail",
    "fork.test_misc.TestCloseFds.test_closefd": "a forked worker's inherited TCP socket is shut",
    "TestStartMethod.test_set_get": "looks at the names of the standard library's own classes",
}


def module_name(suite: str) -> str:
    return f"test.test_{suite}" if suite == "concurrent_futures" else f"test.test_multiprocessing_{suite}"


def put_in() -> None:
    """netless's classes under the standard library's names."""
    import netless

    concurrent.futures.ProcessPoolExecutor = netless.ProcessPoolExecutor
    contexts = multiprocessing.context._concrete_contexts
    for method in list(contexts):
        contexts[method] = netless.get_context(method)
    # The one that the suites stop when a module of theirs ends.
    multiprocessing.forkserver._forkserver = contexts["forkserver"].server


PATIENCE = 40  # seconds for one test


def out_of_patience(number, frame):
    raise TimeoutError("the test hangs")


class Result(unittest.TextTestResult):
    def startTest(self, test):
        self.before = set(multiprocessing.active_children())
        signal.alarm(PATIENCE)
        super().startTest(test)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)
        for process in set(multiprocessing.active_children()) - self.before:
            process.kill()  # of a test that failed; the suite would wait for it


def run_here(suite: str, pattern: str, ours: bool, out: str) -> int:
    if ours:
        put_in()
    name = module_name(suite)
    importlib.import_module(name)
    loaded = unittest.defaultTestLoader.loadTestsFromName(name)
    tests = [test for test in flatten(loaded) if pattern in test.id()]
    if suite == "concurrent_futures":
        tests = [test for test in tests if "Process" in test.id()]
    signal.signal(signal.SIGALRM, out_of_patience)
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Result)
    result = runner.run(unittest.TestSuite(tests))
    failed = {
        test.id(): text.strip().splitlines()[-1] for test, text in result.failures + result.errors
    }
    with open(out, "w") as file:
        json.dump({"run": result.testsRun, "skipped": len(result.skipped), "failed": failed}, file)
    sys.stdout.flush()
    os._exit(0)  # what a hanging test left behind is nobody's any more


def run_apart(suite: str, pattern: str, ours: bool) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "result.json")
        command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), suite]
        command += ["-k", pattern, "--here", "ours" if ours else "theirs", "--out", out]
        quiet = None if pattern else subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=folder, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            process.wait(1500)
            with open(out) as file:
                return json.load(file)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"run": 0, "skipped": 0, "failed": {"the suite": repr(error)}}
        finally:
            with contextlib.suppress(ProcessLookupError):  # hanging tests leave processes behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def compare(suite: str, pattern: str) -> bool:
    theirs, ours = (run_apart(suite, pattern, which) for which in (False, True))
    unexpected = 0
    for test, message in sorted(ours["failed"].items()):
        if test in theirs["failed"]:
            continue
        reason = next((why for part, why in EXPECTED.items() if part in test), None)
        unexpected += reason is None
        print(f"{'DIFFERENCE' if reason is None else 'expected'}: {test}: {reason or message}")
    counts = ", ".join(
        f"{who} {found['run']} run, {len(found['failed'])} failed, {found['skipped']} skipped"
        for who, found in (("standard", theirs), ("netless", ours))
    )
    print(f"{suite} on {sys.version.split()[0]}: {counts}, {unexpected} unexplained", flush=True)
    return unexpected == 0 and ours["run"] == theirs["run"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="SUITE")
    parser.add_argument("-k", default="", metavar="SUBSTRING", help="only tests whose id has it")
    parser.add_argument("--here", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        return run_here(options.suites[0], options.k, options.here == "ours", options.out)
    try:
        importlib.import_module("test.support")
    except ImportError as error:
        print(f"the interpreter ships no test suite: {error}", file=sys.stderr)
        return 2
    results = [compare(suite, options.k) for suite in options.suites]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
