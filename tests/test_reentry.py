"""A launch belongs to its request: others begin inside it, beside it, or end it by an exception."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.isolated, pytest.mark.native]

WAYS = {
    "Popen": "netless.check_call(['true'])",
    "preexec": "netless.check_call(['true'], preexec_fn=int)",
    "group": "netless.check_call(['true'], group=os.getgid())",
    "private": "netless.check_call(['true'], isolation=netless.Isolation(private=True))",
    "worker": "worker = context.Process(target=int); worker.start(); worker.join();"
    " assert worker.exitcode == 0",
}
COMMON = """
import faulthandler, os, signal, sys, threading, time
import netless
faulthandler.dump_traceback_later(60, exit=True)  # a deadlock has no other end
context = netless.get_context("fork")
"""


@pytest.mark.parametrize("inner", WAYS)
@pytest.mark.parametrize("outer", ["Popen", "preexec", "worker"])
def test_a_handler_launches_while_its_thread_does(outer: str, inner: str, script) -> None:
    """From the first launch on, when everything has yet to be settled."""
    source = f"""{COMMON}
ran = []
inside = False

def handler(number, frame):
    global inside
    if inside:
        return
    inside = True
    {WAYS[inner]}
    inside = False
    ran.append(1)

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.003)
while len(ran) < 5:
    {WAYS[outer]}
signal.setitimer(signal.ITIMER_REAL, 0)
print("ok")
"""
    done = script(source)
    assert done.stdout == "ok\n", done.stderr


def test_a_hook_of_fork_launches_another(script) -> None:
    """The right program, under the right isolation, for each."""
    source = f"""{COMMON}
outside = os.readlink("/proc/self/ns/net")
inner = []

def hook():
    if not inner:
        inner.append(None)
        options = dict(preexec_fn=int, isolation=netless.Isolation(private=True), text=True)
        inner[0] = netless.check_output(["readlink", "/proc/self/ns/net"], **options).strip()

os.register_at_fork(before=hook)
command = ["sh", "-c", "echo outer; readlink /proc/self/ns/net"]
first, shared = netless.check_output(command, preexec_fn=int, text=True).split()
assert first == "outer" and len({{outside, shared, inner[0]}}) == 3, (first, shared, inner)
print("ok")
"""
    done = script(source)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_child_that_is_stuck_holds_up_nobody(way: str, script) -> None:
    """In its preexec_fn, until the others are done: also a first use, a probe and a pool."""
    source = f"""{COMMON}
stuck, go = os.pipe()
started, tell = os.pipe()

def preexec():
    os.write(tell, b"x")
    os.read(stuck, 1)

options = dict(preexec_fn=preexec)
thread = threading.Thread(target=netless.check_call, args=(["true"],), kwargs=options)
thread.start()
os.read(started, 1)
for _ in range(3):
    {WAYS[way]}
netless.require(netless.Isolation(map_root=True))
assert thread.is_alive()
os.write(go, b"x")
thread.join()
print("ok")
"""
    done = script(source)
    assert done.stdout == "ok\n", done.stderr


def test_a_worker_that_lives_on_holds_up_nobody(script) -> None:
    """It has copies of what its parent had open for children that were under way."""
    source = f"""{COMMON}
stuck, go = os.pipe()
started, tell = os.pipe()

def preexec():
    os.write(tell, b"x")
    os.read(stuck, 1)

options = dict(preexec_fn=preexec)
thread = threading.Thread(target=netless.check_call, args=(["true"],), kwargs=options)
thread.start()
os.read(started, 1)
leave = context.Event()
worker = context.Process(target=leave.wait)
worker.start()
os.write(go, b"x")
thread.join()
assert worker.is_alive()
leave.set()
worker.join()
print("ok")
"""
    done = script(source)
    assert done.stdout == "ok\n", done.stderr


INTERRUPTED = f"""{COMMON}
class Stop(Exception):
    pass

def handler(number, frame):
    raise Stop

def left():
    return len(os.listdir("/proc/self/fd"))

def children():
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT | 0x40000000
    try:
        return 1 + (os.waitid(os.P_ALL, 0, flags) is not None)
    except ChildProcessError:
        return 0
"""


def test_an_interrupt_reaches_who_waits_for_a_stuck_child(script) -> None:
    source = f"""{INTERRUPTED}
netless.check_call(["true"], preexec_fn=int)
before = left()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    netless.check_call(["true"], preexec_fn=lambda: time.sleep(1000))
except Stop:
    print("stopped", left() - before, children())
"""
    done = script(source)
    assert done.stdout == "stopped 0 0\n", done.stderr


@pytest.mark.parametrize("way", ["preexec", "worker"])
def test_interrupts_at_any_step_leave_nothing(way: str, script) -> None:
    start = {
        "preexec": "netless.Popen(['true'], preexec_fn=int).wait()",
        "worker": "worker = context.Process(target=int); worker.start(); worker.join()",
    }[way]
    source = f"""{INTERRUPTED}
import gc, random
{start}
gc.collect()
def handles():
    names = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{{fd}}")]
    return sum(not name.startswith("pipe:") for name in names)

before = handles()
signal.signal(signal.SIGALRM, handler)
stopped = 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
        {start}
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        stopped += 1
    except Exception:  # what multiprocessing makes of it in its own code
        stopped += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
worker = None
import multiprocessing
for child in multiprocessing.active_children():
    child.join()
gc.collect()
# Pipes are multiprocessing's own, which loses some of them when it is interrupted.
print(stopped > 20, handles() - before)
"""
    done = script(source)
    assert done.stdout == "True 0\n", done.stderr
