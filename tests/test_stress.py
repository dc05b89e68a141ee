"""Threads, signals and thousands of children: nothing fails, nothing hangs, nothing stays."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.isolated


def test_fifty_threads_spawn_while_others_come_and_go(script) -> None:
    """2,000 spawns, with an at-fork hook that starts a thread in every forked child."""
    done = script(
        """
        import os, threading
        import netless
        os.register_at_fork(
            after_in_child=lambda: threading.Thread(target=lambda: None, daemon=True).start())
        stop = threading.Event()
        problems = []

        def churn():
            while not stop.is_set():
                thread = threading.Thread(target=lambda: None)
                thread.start()
                thread.join()

        def spawn(number):
            try:
                for round in range(40):
                    isolation = netless.Isolation(private=round % 10 == 9)
                    status = netless.call(["/bin/sh", "-c", f"exit {number}"], isolation=isolation)
                    if status != number:
                        problems.append(status)
            except BaseException as error:
                problems.append(error)

        churners = [threading.Thread(target=churn) for _ in range(4)]
        spawners = [threading.Thread(target=spawn, args=(n,)) for n in range(50)]
        for thread in churners + spawners:
            thread.start()
        for thread in spawners:
            thread.join()
        stop.set()
        for thread in churners:
            thread.join()
        print(len(problems), problems[:3])
        """
    )
    assert done.stdout == "0 []\n", (done.stdout, done.stderr[-2000:])


def test_preexec_fn_works_in_spite_of_a_hook_that_starts_threads(script) -> None:
    """The child is isolated before the hook runs, so it is still single-threaded then."""
    done = script(
        """
        import os, threading
        import netless
        started = []
        os.register_at_fork(
            after_in_child=lambda: threading.Thread(target=lambda: None, daemon=True).start())
        for _ in range(20):
            assert netless.call(["true"], preexec_fn=lambda: os.setpgid(0, 0)) == 0
        print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


def test_signal_storm_is_neither_lost_nor_misdirected(script) -> None:
    """A 1 kHz timer with a Python handler during 1,000 spawns."""
    done = script(
        """
        import os, signal
        import netless
        own, ticks, strays = os.getpid(), 0, 0

        def tick(number, frame):
            global ticks, strays
            ticks += 1
            strays += os.getpid() != own

        received = []
        signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        statuses = set()
        for number in range(1000):
            statuses.add(netless.call(["/bin/sh", "-c", f"kill -USR1 {own}; exit 5"]))
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert statuses == {5}, statuses
        assert ticks > 100 and strays == 0, (ticks, strays)
        assert len(received) == 1000, len(received)
        print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


def test_handlers_and_mask_are_reset_in_the_child(script) -> None:
    done = script(
        """
        import signal
        import netless
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        masks = {}
        show = ["/bin/cat", "/proc/self/status"]
        # Without the environment: a preloaded sanitizer has handlers of its own.
        for line in netless.check_output(show, text=True, env={}).splitlines():
            name, value, *_ = line.split() + [None]
            if name in ("SigBlk:", "SigIgn:", "SigCgt:"):
                masks[name] = {n + 1 for n in range(64) if int(value, 16) >> n & 1}
        assert masks["SigBlk:"] == {signal.SIGHUP}
        assert masks["SigIgn:"] == {signal.SIGUSR2}  # SIGPIPE is default again
        assert not masks["SigCgt:"]
        print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


def test_nothing_is_left_after_thousands_of_spawns(script) -> None:
    """5,000 spawns, a third of them failing: descriptors, children and namespaces are even."""
    done = script(
        """
        import os, sys, time
        sys.path.insert(0, sys.argv[1])
        from support import live_network_namespaces, network_namespaces_settle, snapshot
        import netless

        for isolation in (netless.Isolation(), netless.Isolation(private=True)):
            netless.call(["true"], isolation=isolation)
        before, namespaces = snapshot(), live_network_namespaces()
        failing = [
            {"args": ["/no/such/program"]},
            {"args": ["true"], "cwd": "/no/such/directory"},
            {"args": ["true"], "user": 4294967294, "group": 4294967294}
            if os.geteuid() else {"args": ["true"], "extra_groups": [1], "cwd": "/no/such"},
        ]
        failed = 0
        for number in range(5000):
            isolation = netless.Isolation(private=number % 50 == 0)
            if number % 3:
                netless.call(["/bin/true"], isolation=isolation)
                continue
            try:
                netless.Popen(**failing[number // 3 % 3], isolation=isolation)
            except OSError:
                failed += 1
        assert failed == 1667, failed
        assert snapshot() == before, (before, snapshot())
        assert network_namespaces_settle(namespaces), (namespaces, live_network_namespaces())
        print("ok")
        """,
        os.path.dirname(__file__),
    )
    assert done.stdout == "ok\n", done.stderr
