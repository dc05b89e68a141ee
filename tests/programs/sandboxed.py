"""sandboxed.py ORDERS-JSON: what netless does here, inside some other sandbox, as JSON.

The orders: "work" names what to do, "isolation" how, "reach" is a command that ends with 0
when it got out and with 1 when it did not.  Whatever netless starts, subprocess or
multiprocessing starts as well: the control.
"""

import json
import multiprocessing
import os
import socket
import subprocess
import sys

import netless

ALL_CHILDREN = 0x40000000  # __WALL: also those that send no SIGCHLD
LINK = ["readlink", "/proc/self/ns/net"]


def outcome(call) -> object:
    """What it returned; an error as a dictionary."""
    try:
        return call()
    except Exception as error:
        names = ("cause", "step", "errno", "hint", "filename", "fd", "family")
        told = {name: getattr(error, name, None) for name in names}
        return {"kind": type(error).__name__, "text": str(error), **told}


def left() -> dict[str, object]:
    """Open descriptors and ended children that nobody has waited for."""
    try:
        children = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | ALL_CHILDREN)
        ended = "running" if children is None else children.si_pid
    except ChildProcessError:
        ended = None
    return {"descriptors": sorted(os.listdir("/proc/self/fd")), "children": ended}


def launches(orders: dict, isolation: netless.Isolation) -> dict:
    """Every way of Popen: what it reaches, in which namespace, and a program that is missing."""
    ways: dict[str, dict] = {"plain": {}, "preexec_fn": {"preexec_fn": int}}
    if orders.get("user") is not None:
        ways["user"] = {"user": orders["user"], "group": orders["user"], "extra_groups": []}
    modules = {"subprocess": {}, "netless": {"isolation": isolation}}
    found: dict[str, dict] = {}
    for _ in range(2):  # what is kept for the next child is not left behind
        for name, options in ways.items():
            found[name] = {
                key: attempts(getattr(sys.modules[__name__], key), orders, {**options, **also})
                for key, also in modules.items()
            }
        found["left"] = {"before": found.get("left", {}).get("after"), "after": left()}
    return {"own": os.readlink("/proc/self/ns/net"), **found}


def attempts(module, orders: dict, options: dict) -> dict:
    def reach() -> int:
        return module.call(orders["reach"], stderr=module.DEVNULL, **options)

    def namespace() -> str:
        return module.check_output(LINK, text=True, **options).strip()

    def missing() -> int:
        return module.run(["/no/such/program"], **options).returncode

    def not_executable() -> int:
        return module.run(["/etc/passwd"], **options).returncode

    def nowhere() -> int:
        return module.run(["true"], cwd="/no/such/directory", **options).returncode

    tried = (reach, namespace, missing, not_executable, nowhere)
    return {each.__name__: outcome(each) for each in tried}


def work(reach: list[str]) -> None:
    """A worker's: its exit status is what the command's was."""
    raise SystemExit(subprocess.call(reach, stderr=subprocess.DEVNULL))


def task(reach: list[str]) -> int:
    return subprocess.call(reach, stderr=subprocess.DEVNULL)


def worker(context, reach: list[str]) -> int | None:
    process = context.Process(target=work, args=(reach,))
    process.start()
    process.join(60)
    return process.exitcode


def pool(executor, reach: list[str]) -> list[int]:
    with executor:
        return list(executor.map(task, [reach] * 3, timeout=60))


def workers(orders: dict, isolation: netless.Isolation) -> dict:
    from concurrent.futures import ProcessPoolExecutor

    reach = orders["reach"]
    plain = multiprocessing.get_context(orders["method"])
    isolated = netless.get_context(orders["method"], isolation)
    return {
        "subprocess": {
            "worker": outcome(lambda: worker(plain, reach)),
            "pool": outcome(lambda: pool(ProcessPoolExecutor(1, plain), reach)),
        },
        "netless": {
            "worker": outcome(lambda: worker(isolated, reach)),
            "pool": outcome(lambda: pool(netless.ProcessPoolExecutor(1, isolated), reach)),
        },
    }


def isolate(orders: dict, isolation: netless.Isolation) -> dict:
    """This process itself, with a pair of sockets open if asked; and children of netless in it."""
    before = outcome(lambda: task(orders["reach"]))
    pair = socket.socketpair() if orders.get("pair") else ()
    isolated = outcome(lambda: netless.isolate(isolation))
    for each in pair:
        each.close()
    found = {"before": before, "isolate": isolated}
    if isolated is None:
        found["after"] = outcome(lambda: task(orders["reach"]))
        found["nested"] = outcome(lambda: netless.call(["true"], isolation=isolation))
    return found


def probe(orders: dict, isolation: netless.Isolation) -> dict:
    found = netless.probe(isolation)
    error = found.error
    return {
        "available": found.available,
        "mechanism": found.mechanism,
        "guarantees": sorted(found.guarantees),
        "error": None if error is None else {"text": str(error), **vars_of(error)},
        "require": outcome(lambda: netless.require(isolation).mechanism),
    }


def vars_of(error: netless.NetworkIsolationUnavailable) -> dict:
    return {name: getattr(error, name) for name in ("cause", "step", "errno", "hint")}


def inherited(orders: dict, isolation: netless.Isolation) -> dict:
    """A socket as standard input: one that leads nowhere, one that the sandbox was given."""

    def child(module, fd: int, **options) -> int:
        return module.call(["true"], stdin=fd, stderr=module.DEVNULL, **options)

    def both(fd: int) -> dict:
        return {
            "subprocess": outcome(lambda: child(subprocess, fd)),
            "netless": outcome(lambda: child(netless, fd, isolation=isolation)),
        }

    here, there = socket.socketpair()
    with here, there:
        return {"pair": both(here.fileno()), "tcp": both(orders["fd"])}


def main() -> None:
    orders = json.loads(sys.argv[1])
    do = {"launches": launches, "workers": workers, "isolate": isolate, "probe": probe}
    do["inherited"] = inherited
    isolation = netless.Isolation(**orders.get("isolation", {}))
    print(json.dumps(do[orders["work"]](orders, isolation)))


if __name__ == "__main__":
    main()
