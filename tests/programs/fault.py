"""fault.py MARKER OPTIONS-JSON [STRACE ARGUMENT ...]: one launch with one call made to fail.

Warms up, lets strace attach to this process with the injection, launches a child
that would write MARKER, and prints as JSON what came back and what was left.
"""

import json
import os
import subprocess
import sys
import time

import netless

ALL_CHILDREN = 0x40000000  # __WALL: also those that send no SIGCHLD


def tracer() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("TracerPid"))


def zombies() -> int:
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT | ALL_CHILDREN
    try:
        return int(os.waitid(os.P_ALL, 0, flags) is not None)
    except ChildProcessError:
        return 0


def start(marker: str, isolation: netless.Isolation, *, by_fork: bool, **options) -> int:
    """The exit status of a child, or of a worker that is forked, which writes the marker."""
    command = ["/bin/sh", "-c", 'echo "$(readlink /proc/self/ns/net)" > "$0"', marker]
    if not by_fork:
        return netless.Popen(command, isolation=isolation, **options).wait()
    context = netless.get_context("fork", isolation)
    worker = context.Process(target=os.execv, args=(command[0], command))
    worker.start()
    worker.join()
    return worker.exitcode


def main() -> None:
    marker, options, *injection = sys.argv[1:]
    options = json.loads(options)
    isolation = netless.Isolation(**options.pop("isolation", {}))
    warm, by_fork = options.pop("warm", True), options.pop("by_fork", False)
    if options.pop("preexec", False):
        options["preexec_fn"] = lambda: None
    if warm:
        netless.run(["true"], isolation=isolation, check=True)
    before = sorted(os.listdir("/proc/self/fd"))
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(os.getpid()), *injection]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not tracer():
        if strace.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"strace did not attach: {strace.stderr.read()}")
        time.sleep(0.01)
    result = {"kind": None, "step": None, "errno": None, "cause": None}
    try:
        result["status"] = start(marker, isolation, by_fork=by_fork, **options)
    except Exception as error:
        result["kind"] = type(error).__name__
        for name in ("step", "errno", "cause"):
            result[name] = getattr(error, name, None)
    strace.terminate()
    strace.wait()
    strace.stderr.close()
    after = sorted(os.listdir("/proc/self/fd"))
    result["zombies"] = zombies()
    result["descriptors"] = len(after) - len(before)
    result["namespace"] = os.readlink("/proc/self/ns/net")
    print(json.dumps(result))


main()
