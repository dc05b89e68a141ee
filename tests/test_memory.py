"""Until execve a child has its parent's memory: nobody gets to see it, and it is left whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import need

pytestmark = [pytest.mark.isolated, pytest.mark.native]

# A process of its own number 1: nothing that is sent or limited here reaches others.
ALONE = ("unshare", "--user", "--map-current-user", "-fp", "--mount-proc", "--kill-child", "--")

# Sends a signal to a child that has only begun: strace holds it up at its first setns, so
# that the signal is there when it unblocks its signals.
DUMPED = """
import os, pathlib, resource, signal, subprocess, sys, threading, time
import netless

number = signal.Signals[sys.argv[1]]
options = {"group": os.getgid()} if sys.argv[2] == "copy" else {}
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
secret = "of the parent " * 4
netless.run(["true"], **options)
start = subprocess.Popen if sys.argv[3] == "control" else netless.Popen

if sys.argv[3] == "control":  # an ordinary program dumps core of it, and of itself alone
    with subprocess.Popen(["sleep", "60"]) as process:
        time.sleep(0.2)
        process.send_signal(number)
    print(process.returncode == -number)
    sys.exit()

hold = ["-e", "inject=setns:delay_enter=300000:when=1"]
strace = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(os.getpid()), *hold])
while "TracerPid:\\t0" in pathlib.Path("/proc/self/status").read_text():
    time.sleep(0.01)

def send():
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for task in os.listdir("/proc/self/task"):
            for child in pathlib.Path(f"/proc/self/task/{task}/children").read_text().split():
                if int(child) != strace.pid:
                    os.kill(int(child), number)
                    return

thread = threading.Thread(target=send)
thread.start()
with netless.Popen(["sleep", "0.5"], **options) as process:
    process.wait()
thread.join()
strace.terminate()
strace.wait()
print(process.returncode, sorted(path.name for path in pathlib.Path().glob("core*")))
"""
DUMPING = ["SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGXCPU"]
DUMPING += ["SIGXFSZ", "SIGSYS"]


def prefix() -> tuple[str, ...]:
    need("unshare")
    return ALONE if os.geteuid() != 0 else ALONE[:1] + ALONE[3:]


@pytest.mark.parametrize("memory", ["shared", "copy"])
@pytest.mark.parametrize("number", DUMPING)
def test_a_child_that_has_only_begun_dumps_no_core(
    number: str, memory: str, script, tmp_path: Path
) -> None:
    need("strace")
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("a program outside takes this system's cores")
    done = script(DUMPED, number, memory, "child", prefix=prefix(), cwd=tmp_path)
    assert done.stdout == "-9 []\n", done.stderr


def test_a_program_ends_as_always(script, tmp_path: Path) -> None:
    """The control: what ends it without a core is gone with execve."""
    done = script(DUMPED, "SIGQUIT", "shared", "control", prefix=prefix(), cwd=tmp_path)
    assert done.stdout == "True\n", done.stderr


SMALL_STACKS = """
import sys, threading
import netless

isolation = netless.Isolation(private=sys.argv[2] == "private")
options = {"group": __import__("os").getgid()} if sys.argv[2] == "copy" else {}
if sys.argv[3] == "warm":
    netless.run(["true"], isolation=isolation, **options)
ran = []

def launch():
    # Deep enough to have used up what a small stack has left over.
    for _ in range(10):
        ran.append(netless.Popen(["true"], isolation=isolation, **options).wait())

threading.stack_size(int(sys.argv[1]))
for _ in range(5):
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
print(ran == [0] * 50)
"""


@pytest.mark.parametrize("size", [48, 52, 56, 60, 64, 68, 72, 128])
@pytest.mark.parametrize("kind", ["shared", "private", "copy"])
def test_threads_with_small_stacks_launch_too(size: int, kind: str, script) -> None:
    """The child goes on on its caller's stack, in what is left of it."""
    done = script(SMALL_STACKS, size * 1024, kind, "warm")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_first_launch_in_a_small_thread(script) -> None:
    done = script(SMALL_STACKS, 128 * 1024, "shared", "cold")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.build
@pytest.mark.parametrize(
    "flags",
    [
        ("-O2",),
        ("-O0",),
        ("-O2", "-fno-omit-frame-pointer"),
        # So few registers that operands without a name would be given the frame pointer.
        ("-O2", *(f"-ffixed-{name}" for name in ("rbx", "r10", "r12", "r13", "r14", "r15"))),
        ("-O1", "-fstack-protector-all", "-mavx2"),
    ],
    ids=["O2", "O0", "frame-pointer", "few-registers", "protector"],
)
def test_the_clone_works_however_it_is_compiled(flags, tmp_path: Path) -> None:
    import platform
    import subprocess

    if platform.machine() != "x86_64":
        pytest.skip("names of x86_64's registers")
    source = tmp_path / "clone.c"
    source.write_text(CLONES)
    csrc = Path(__file__).resolve().parent.parent / "csrc"
    target = tmp_path / "clone"
    build = [
        need("gcc"),
        "-std=gnu11",
        "-Wall",
        "-Werror",
        *flags,
        "-I",
        csrc,
        source,
        "-o",
        target,
    ]
    subprocess.run(build, check=True)
    assert subprocess.run([target], timeout=60).returncode == 0


CLONES = r"""
#define _GNU_SOURCE
#include "machine.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int told;

static int child(void *argument)
{
    volatile char used[6000];
    memset((char *)used, 0x5a, sizeof used);
    told += *(int *)argument + (used[17] == 0x5a);
    _exit(3);
}

int main(void)
{
    for (int i = 0; i < 200; i++) {
        int value = 41, status = 0, before = told;
        volatile long kept[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        struct netless_clone_arguments arguments = {
            .flags = CLONE_VM | CLONE_VFORK | NETLESS_CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD};
        long pid = i % 2 ? netless_clone(CLONE_VM | CLONE_VFORK | SIGCHLD, child, &value)
                         : netless_clone3(&arguments, child, &value);
        if (pid <= 0 || waitpid((pid_t)pid, &status, 0) != pid || WEXITSTATUS(status) != 3)
            return 1;
        for (int k = 0; k < 8; k++)
            if (kept[k] != k + 1)
                return 2;
        if (told != before + 42)
            return 4;
    }
    return 0;
}
"""
