"""netless.aio is asyncio's: Process, streams, signals, cancellation; on each loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib.util
import os
import signal
import socket
import sys
import threading
import warnings
from asyncio.subprocess import PIPE

import pytest

import netless
from netless import InheritedSocketError, Isolation, NetworkIsolationUnavailable, aio
from support import PATIENCE, need, need_uvloop, snapshot

pytestmark = pytest.mark.isolated

CONNECT = (
    "import socket, sys; c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5);"
    "c.send(b'x'); c.recv(9)"
)
SHELL_CONNECT = "exec 3<>/dev/tcp/{}/{} && echo x >&3"


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What netless and libuv keep from the first child on."""
    netless.require()
    netless.require(Isolation(private=True))

    async def first():
        process = await asyncio.create_subprocess_exec("true", stdin=PIPE)
        await process.communicate()

    if importlib.util.find_spec("uvloop") is not None:
        loop = new_loop("uvloop")
        loop.run_until_complete(first())
        loop.close()


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "asyncio":
        return asyncio.new_event_loop()
    need_uvloop()
    import uvloop

    return uvloop.new_event_loop()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a loop of its own, which is closed at the end; nothing stays behind."""

    async def patient(main):
        return await asyncio.wait_for(main, PATIENCE)

    before = snapshot()
    loop = new_loop(request.param)
    try:
        yield lambda main: loop.run_until_complete(patient(main))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert snapshot() == before


async def output(*command: str, **options) -> str:
    process = await aio.create_subprocess_exec(*command, stdout=PIPE, **options)
    shown, _ = await process.communicate()
    assert process.returncode == 0
    return shown.decode().strip()


# ---- without network ----


def test_exec_reaches_no_listener(run, listener4) -> None:
    command = [sys.executable, "-c", CONNECT, listener4.address, str(listener4.port)]

    async def status(create):
        process = await create(*command, stderr=PIPE)
        await process.communicate()
        return process.returncode

    before = listener4.reached
    assert run(status(asyncio.create_subprocess_exec)) == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    assert run(status(aio.create_subprocess_exec)) == 1
    assert listener4.reached == before


def test_shell_reaches_no_listener(run, listener4) -> None:
    command = SHELL_CONNECT.format(listener4.address, listener4.port)
    bash = need("bash")

    async def status(create):
        process = await create(command, stderr=PIPE, executable=bash)
        await process.communicate()
        return process.returncode

    before = listener4.reached
    assert run(status(asyncio.create_subprocess_shell)) == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    assert run(status(aio.create_subprocess_shell)) == 1
    assert listener4.reached == before


def test_isolation_is_what_was_asked_for(run) -> None:
    serve = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(s.getsockname(), 5); print('met')"
    )

    async def main():
        up = await output(sys.executable, "-c", serve, isolation=Isolation(loopback=True))
        down = await aio.create_subprocess_exec(sys.executable, "-c", serve, stderr=PIPE)
        await down.communicate()
        return up, down.returncode

    assert run(main()) == ("met", 1)


# ---- asyncio's own behaviour ----


def test_process_is_asyncios_with_streams(run) -> None:
    async def main():
        process = await aio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert isinstance(process, asyncio.subprocess.Process)
        assert process.returncode is None
        process.stdin.write(b"one\n")
        await process.stdin.drain()
        assert await process.stdout.readline() == b"one\n"
        assert await process.communicate(b"x" * 300_000) == (b"x" * 300_000, b"")
        assert process.returncode == 0

    run(main())


def test_keywords_reach_popen(run, tmp_path) -> None:
    async def main():
        read, write = os.pipe()
        shown = await output(
            *("bash", "-c", f"umask; pwd; echo $A; echo passed >&{write}"),
            cwd=tmp_path,
            env={"A": "b"},
            umask=0o27,
            start_new_session=True,
            pass_fds=(write,),
        )
        assert shown.split() == ["0027", str(tmp_path), "b"]
        assert os.read(read, 99) == b"passed\n"
        os.close(read)
        os.close(write)
        process = await aio.create_subprocess_shell("echo out; echo err >&2", None, PIPE, -2)
        assert await process.communicate() == (b"out\nerr\n", None)

    run(main())


def test_preexec_fn_is_called_in_the_child(run) -> None:
    async def main():
        return await output("sh", "-c", "umask", preexec_fn=lambda: os.umask(0o71))

    assert run(main()) == "0071"


def test_signals_and_their_end(run) -> None:
    async def main():
        for end, status in (
            (lambda p: p.kill(), -signal.SIGKILL),
            (lambda p: p.terminate(), -signal.SIGTERM),
            (lambda p: p.send_signal(signal.SIGHUP), -signal.SIGHUP),
        ):
            process = await aio.create_subprocess_exec("sleep", "600")
            end(process)
            assert await process.wait() == process.returncode == status
            with pytest.raises(ProcessLookupError):
                end(process)

    run(main())


def test_timeout_of_wait_leaves_the_child_alone(run) -> None:
    async def main():
        process = await aio.create_subprocess_exec("cat", stdin=PIPE)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 0.01)
        assert process.returncode is None
        process.stdin.close()
        assert await process.wait() == 0

    run(main())


@pytest.mark.parametrize("name", ["universal_newlines", "text", "encoding", "errors"])
def test_text_is_refused_as_asyncio_does(name: str, run) -> None:
    async def words(create):
        with pytest.raises(ValueError, match=name) as caught:
            await create("true", **{name: True})
        return str(caught.value)

    for own, theirs in (
        (aio.create_subprocess_exec, asyncio.create_subprocess_exec),
        (aio.create_subprocess_shell, asyncio.create_subprocess_shell),
    ):
        assert run(words(own)) == asyncio.run(words(theirs))  # uvloop has other words


def test_errors_are_asyncios(run) -> None:
    async def errors(create_exec, create_shell):
        found = []
        for create, args, options in (
            (create_exec, ["/no/such/program"], {}),
            (create_exec, ["/etc/passwd"], {}),
            (create_exec, ["true"], {"cwd": "/no/such/folder"}),
            (create_exec, ["true"], {"shell": True}),
            (create_exec, ["true"], {"bufsize": 1}),
            (create_shell, [["true"]], {}),
            (create_shell, ["true"], {"shell": False}),
        ):
            with pytest.raises((OSError, ValueError)) as caught:
                await create(*args, **options)
            found.append((caught.type, str(caught.value)))
        return found

    # uvloop's own have no file name.
    theirs = errors(asyncio.create_subprocess_exec, asyncio.create_subprocess_shell)
    expected = asyncio.run(theirs)
    assert run(errors(aio.create_subprocess_exec, aio.create_subprocess_shell)) == expected


def test_a_child_that_cannot_be_isolated_is_not_run(run, marker) -> None:
    async def main():
        with pytest.raises(NetworkIsolationUnavailable):
            await aio.create_subprocess_exec(
                *marker.command, isolation=Isolation(mechanism="seatbelt")
            )
        with socket.socket() as inherited:
            with pytest.raises(InheritedSocketError):
                await aio.create_subprocess_exec(*marker.command, pass_fds=[inherited.fileno()])
            with pytest.raises(InheritedSocketError):
                await aio.create_subprocess_exec(*marker.command, stdin=inherited)

    run(main())
    assert not marker.written()


# ---- the loop goes on ----


def test_the_loop_runs_while_a_child_is_started(run) -> None:
    """Starting it takes something that only the loop's next turn gives."""
    turned = threading.Event()

    class Input:
        def fileno(self) -> int:
            assert turned.wait(PATIENCE)
            return 0

    async def main():
        asyncio.get_running_loop().call_soon(turned.set)
        process = await aio.create_subprocess_exec("true", stdin=Input())
        return await process.wait()

    assert run(main()) == 0


def starters() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("netless")]


def test_one_thread_for_all_children_and_none_after_them(run) -> None:
    for thread in starters():
        thread.join(PATIENCE)

    async def main():
        before = threading.active_count()
        processes = await asyncio.gather(
            *(aio.create_subprocess_exec("cat", stdin=PIPE) for _ in range(20))
        )
        assert len(starters()) == 1
        assert threading.active_count() == before + 1
        for process in processes:
            process.stdin.close()
        assert [await process.wait() for process in processes] == [0] * 20
        for thread in starters():
            thread.join(PATIENCE)
        assert threading.active_count() == before

    run(main())


def test_a_dropped_loop_takes_its_thread_with_it() -> None:
    """Even if it is closed before its child is reaped."""
    loop = new_loop("uvloop")
    process = loop.run_until_complete(aio.create_subprocess_exec("sleep", "600"))
    assert starters()
    loop.close()
    process.kill()
    os.waitpid(process.pid, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # unclosed transport
        del loop, process
        gc.collect()
    for thread in starters():
        thread.join(PATIENCE)
    assert not starters()


def test_who_dies_with_its_parent_lives_on(run) -> None:
    """To Linux the parent is a thread: it must not end before the child."""
    setpriv = need("setpriv")

    async def main():
        process = await aio.create_subprocess_exec(
            *(setpriv, "--pdeathsig", "KILL", "cat"), stdin=PIPE, stdout=PIPE
        )
        process.stdin.write(b"x\n")
        assert await process.stdout.readline() == b"x\n"
        other = await aio.create_subprocess_exec("true")
        await other.wait()
        assert await process.communicate(b"y\n") == (b"y\n", None)
        assert process.returncode == 0

    run(main())


def test_children_of_the_loop_itself_are_not_mixed_up(run) -> None:
    async def status(create, number):
        process = await create("sh", "-c", f"exit {number}")
        return await process.wait()

    async def main():
        creates = [aio.create_subprocess_exec, asyncio.create_subprocess_exec] * 20
        return await asyncio.gather(*(status(create, n) for n, create in enumerate(creates)))

    assert run(main()) == list(range(40))


# ---- cancellation ----


def test_cancelled_start_leaves_no_child(run) -> None:
    """At any turn of the loop: before the thread, in it, after it, between the pipes."""

    async def main():
        for turns in range(60):
            task = asyncio.ensure_future(
                aio.create_subprocess_exec("sleep", "600", stdin=PIPE, stdout=PIPE)
            )
            for turn in range(turns):
                await asyncio.sleep(0 if turn % 10 else 0.0005)
            if not task.cancel():
                process = task.result()
                process.kill()
                await process.communicate()
                continue
            with contextlib.suppress(asyncio.CancelledError):
                process = await task
                process.kill()
                await process.communicate()

    run(main())


def test_cancelled_when_started_but_not_taken(run) -> None:
    """The thread is done, the task was not told yet."""

    async def main():
        task = asyncio.ensure_future(aio.create_subprocess_exec("sleep", "600", stdin=PIPE))
        await asyncio.sleep(0)
        starter = aio._starters[asyncio.get_running_loop()]
        starter.executor.submit(lambda: None).result()  # blocks the loop
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert starter.children == 0

    run(main())


def test_cancelled_in_the_queue_is_never_started(run, marker) -> None:
    async def main():
        release = threading.Event()

        class Input:
            def fileno(self) -> int:
                assert release.wait(PATIENCE)
                return 0

        first = asyncio.ensure_future(aio.create_subprocess_exec("true", stdin=Input()))
        second = asyncio.ensure_future(aio.create_subprocess_exec(*marker.command))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await second
        process = await first
        assert await process.wait() == 0

    run(main())
    assert not marker.written()


# ---- watching ----


def no_pidfd(monkeypatch, error: int = errno.ENOSYS) -> None:
    def refuse(pid: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_without_pidfds_a_thread_waits(error: int, run, monkeypatch) -> None:
    no_pidfd(monkeypatch, error)

    async def main():
        process = await aio.create_subprocess_exec("sh", "-c", "exit 3")
        other = await aio.create_subprocess_exec("sleep", "600")
        other.kill()
        return await process.wait(), await other.wait()

    assert run(main()) == (3, -signal.SIGKILL)


def is_there(pid: int) -> bool:
    """Is it a child that nobody has reaped, so that its number is nobody else's?"""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "netless-wait" in thread.name]


@pytest.mark.parametrize("what", ["nothing", "signal", "close"])
@pytest.mark.parametrize("way", ["pidfd", "thread"])
def test_no_pid_is_given_back_before_its_end_is_known(way, what, run, monkeypatch) -> None:
    """Else whoever asks for ``returncode`` first, and then signals the pid, can hit a stranger."""
    if way == "thread":
        no_pidfd(monkeypatch)

    async def main():
        process = await aio.create_subprocess_exec("sleep", "600")
        os.kill(process.pid, signal.SIGKILL)
        # From here on nothing comes in between: the loop does not run.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for thread in watchers():
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if what == "signal":
            process.terminate()
        if what == "close":
            process._transport.close()
        assert is_there(process.pid) == (process.returncode is None)
        assert what == "close" or process.returncode is None
        assert await process.wait() == -signal.SIGKILL
        assert not is_there(process.pid)  # the control

    run(main())


@pytest.mark.parametrize("way", ["pidfd", "thread"])
def test_a_pid_that_others_gave_back_is_not_signalled(way: str, run, monkeypatch) -> None:
    """Nothing is sent to a number that is not the child's any more, by ``kill`` at least."""
    told, kill = [], os.kill
    if way == "thread":
        no_pidfd(monkeypatch)
    monkeypatch.setattr(os, "kill", lambda *arguments: told.append(arguments))

    async def main():
        process = await aio.create_subprocess_exec("sleep", "600")
        kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        assert process.returncode is None
        process.terminate()
        process.kill()
        await process.wait()

    run(main())
    assert told == []


@pytest.mark.parametrize("way", ["pidfd", "thread"])
def test_a_stopped_child_has_not_ended(way: str, run, monkeypatch) -> None:
    if way == "thread":
        no_pidfd(monkeypatch)

    async def main():
        process = await aio.create_subprocess_exec("sleep", "600")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 0.2)
        assert process.returncode is None
        process.kill()
        assert await process.wait() == -signal.SIGKILL

    run(main())


def test_no_descriptor_left_for_the_pidfd_is_an_error(run, monkeypatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)

    async def main():
        with pytest.raises(OSError, match="Too many open files"):
            await aio.create_subprocess_exec("sleep", "600", stdin=PIPE)

    run(main())


def test_status_taken_by_others_is_said(run, caplog) -> None:
    async def main():
        process = await aio.create_subprocess_exec("sleep", "600")
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        return await process.wait()

    assert run(main()) == 255
    assert "taken by others" in caplog.text


# ---- whole programs ----


def test_import_of_netless_does_not_import_asyncio(script) -> None:
    done = script(
        """
        import sys
        import netless
        assert "asyncio" not in sys.modules
        netless.aio.create_subprocess_exec
        assert "asyncio" in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_five_hundred_concurrent_children_leave_nothing(kind: str, script) -> None:
    """Descriptors, threads, children and namespaces are what they were."""
    done = script(
        """
        import asyncio, resource, sys, threading, time
        sys.path.insert(0, sys.argv[1])
        from support import children, live_network_namespaces, snapshot
        import netless, netless.aio
        from asyncio.subprocess import PIPE
        from netless import Isolation

        async def child(number):
            process = await netless.aio.create_subprocess_exec(
                "sh", "-c", "read x; exit $x", stdin=PIPE, stdout=PIPE,
                isolation=Isolation(private=number % 10 == 0))
            try:
                await ready.wait()
                await process.communicate(str(number % 7).encode() + b"\\n")
                return process.returncode
            except asyncio.CancelledError:
                process.kill()
                await process.communicate()
                raise

        async def main():
            global ready
            ready = asyncio.Event()
            tasks = [asyncio.ensure_future(child(number)) for number in range(500)]
            await asyncio.sleep(0.1)
            for task in tasks[::50]:
                task.cancel()
            kept = [task for number, task in enumerate(tasks) if number % 50]
            while len(children()) < len(kept) and not any(task.done() for task in kept):
                await asyncio.sleep(0.2)
            ready.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(found):
                if number % 50:
                    assert result == number % 7, (number, result)
                else:
                    assert isinstance(result, asyncio.CancelledError), (number, result)

        def state():
            return snapshot(), threading.active_count()

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 8192), limit))
        if sys.argv[2] == "asyncio":
            from asyncio import new_event_loop as new_loop
        else:
            from uvloop import new_event_loop as new_loop
        for isolation in (Isolation(), Isolation(private=True)):
            netless.require(isolation)
        new_loop().close()
        # Of the 100 that are made; the number is that of the whole machine.
        before, namespaces, few = state(), live_network_namespaces(), 60
        for turn in range(2):
            loop = new_loop()
            loop.run_until_complete(main())
            loop.close()
        for _ in range(100):  # threads and namespaces go a moment later
            now = state(), live_network_namespaces()
            if now[0] == before and (namespaces is None or now[1] <= namespaces + few):
                break
            time.sleep(0.1)
        assert now[0] == before, (now, before)
        assert namespaces is None or now[1] <= namespaces + few, (now, namespaces)
        print("ok")
        """,
        os.path.dirname(__file__),
        kind,
    )
    assert done.stdout == "ok\n", done.stderr[-3000:]


@pytest.mark.parametrize("way", ["pidfd", "thread"])
def test_loop_closed_over_a_live_child_ends_it(way: str, script) -> None:
    done = script(
        """
        import asyncio, gc, os, sys, time, warnings
        sys.path.insert(0, sys.argv[1])
        from support import snapshot
        import netless.aio

        if sys.argv[2] == "thread":
            del os.pidfd_open
        warnings.simplefilter("ignore", ResourceWarning)  # as asyncio's: unclosed transport
        netless.require()
        before = snapshot()
        loop = asyncio.new_event_loop()
        process = loop.run_until_complete(netless.aio.create_subprocess_exec("sleep", "600"))
        loop.close()
        if sys.argv[2] == "thread":  # it holds on to the child
            process._transport.close()
        del loop, process
        gc.collect()
        for _ in range(1000):
            netless.run(["true"])  # subprocess reaps what was dropped
            if snapshot() == before:
                print("ok")
                break
        """,
        os.path.dirname(__file__),
        way,
    )
    assert done.stdout == "ok\n", done.stderr
