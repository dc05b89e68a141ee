"""Worker processes: isolated before anything of theirs runs, and otherwise as they were."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import Isolation
from netless._contexts import Instead, seeing
from support import children, live_network_namespaces, network_namespaces_settle, open_descriptors

pytestmark = [pytest.mark.isolated, pytest.mark.native]

PROGRAM = Path(__file__).resolve().parent / "programs" / "pools.py"
METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize("entry", ["Process", "Pool", "ProcessPoolExecutor"])
@pytest.mark.parametrize("method", METHODS)
def test_worker_reaches_nothing_at_any_moment(method, entry, listener4) -> None:
    def run(which: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", PROGRAM, method, entry, which, str(listener4.port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout.split()

    # What fork copies is not imported or unpickled again, except in what a pool sends it.
    imported = method != "fork"
    unpickled = imported or entry != "Process"
    before = listener4.reached + imported + unpickled
    assert run("original") == [
        "reached" if imported else "not",
        *(() if imported else ("imported",)),
        "reached" if unpickled else "same",
        "reached",
    ]
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    assert run("isolated") == [
        "OSError" if imported else "not",
        *(() if imported else ("imported",)),
        "OSError" if unpickled else "same",
        "OSError",
    ]
    assert listener4.reached == before


def test_at_fork_hook_is_inside(script, listener4) -> None:
    done = script(
        """
        import os, socket, sys
        import netless

        def connect():
            try:
                socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()
                print("reached", flush=True)
            except OSError as error:
                print(type(error).__name__, flush=True)

        os.register_at_fork(after_in_child=connect)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        process = netless.get_context("fork").Process(target=int)
        process.start()
        process.join()
        """,
        listener4.port,
    )
    assert done.stdout.split() == ["reached", "OSError"], done.stderr


def test_forked_worker_has_the_parents_sockets_shut(script, listener4) -> None:
    """In the child they fail as what they are not; in the parent they go on working."""
    done = script(
        """
        import os, socket, sys
        import netless

        connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        handle = os.open("/proc/self/ns/net", os.O_RDONLY)
        local, other = socket.socketpair()

        def task():
            for use in (lambda: connection.send(b"x"), lambda: connection.getpeername()):
                try:
                    use()
                    print("used")
                except OSError as error:
                    print(error.errno)
            print(os.readlink(f"/proc/self/fd/{handle}"), os.get_inheritable(connection.fileno()))
            local.send(b"y")

        process = netless.get_context("fork").Process(target=task)
        process.start()
        process.join()
        print(process.exitcode, other.recv(1), connection.send(b"x"))
        """,
        listener4.port,
    )
    enotsock = str(__import__("errno").ENOTSOCK)
    assert done.stdout.split() == [enotsock, enotsock, "/dev/null", "False", "0", "b'y'", "1"], (
        done.stderr
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_socket_as_an_argument_is_refused(method, listener4) -> None:
    context = netless.get_context(method)
    with socket.create_connection(("127.0.0.1", listener4.port)) as connection:
        with pytest.raises(netless.InheritedSocketError):
            context.Process(target=print, args=(connection,)).start()
        vouched = netless.get_context(method, Isolation(inherit_sockets=True))
        process = vouched.Process(target=connection_is_open, args=(connection,))
        process.start()
        process.join()
        assert process.exitcode == 0
        vouched.server._stop()


def connection_is_open(connection: socket.socket) -> None:
    connection.getpeername()


def exchange(queue, pipe, lock, value, event, name, data) -> None:
    from multiprocessing.shared_memory import SharedMemory

    with lock:
        value.value += 1
    memory = SharedMemory(name)
    memory.buf[0] = 7
    memory.close()
    data["inside"] = True
    event.wait(30)
    pipe.send(os.readlink("/proc/self/ns/net"))
    queue.put(["from", "inside"])


@pytest.mark.parametrize("method", METHODS)
def test_everything_multiprocessing_has(method) -> None:
    from multiprocessing.shared_memory import SharedMemory

    context = netless.get_context(method)
    queue, event, lock = context.Queue(), context.Event(), context.Lock()
    value = context.Value("i", 41)
    here, there = context.Pipe()
    memory = SharedMemory(create=True, size=16)
    try:
        with context.Manager() as manager:
            data = manager.dict()
            process = context.Process(
                target=exchange,
                args=(queue, there, lock, value, event, memory.name, data),
                name="a name",
                daemon=True,
            )
            process.start()
            assert process.is_alive()
            assert process in multiprocessing.active_children()
            event.set()
            assert here.recv() != os.readlink("/proc/self/ns/net")
            assert queue.get(timeout=30) == ["from", "inside"]
            process.join(30)
            assert (process.exitcode, process.name, value.value) == (0, "a name", 42)
            assert memory.buf[0] == 7
            assert dict(data) == {"inside": True}
            process.close()
    finally:
        memory.close()
        memory.unlink()
        queue.close()
        queue.join_thread()
        here.close()
        there.close()


def test_forked_worker_runs_multiprocessings_own_hooks(script) -> None:
    """Proxies and queues depend on them: each process has connections of its own."""
    done = script(
        """
        import threading
        from multiprocessing import util
        import netless

        if __name__ == "__main__":
            context = netless.get_context("fork")
            util.register_after_fork(context, lambda _: print("hook", flush=True))
            with context.Manager() as manager:
                found = manager.list()
                def use(number):
                    for _ in range(200):
                        found.append(number)
                found.append(-1)  # a connection of the parent's
                workers = [context.Process(target=use, args=(n,)) for n in range(4)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                print(len(found), [worker.exitcode for worker in workers])
        """
    )
    assert done.stdout.split() == ["hook"] * 5 + ["801", "[0,", "0,", "0,", "0]"], (
        done.stderr + done.stdout
    )


class Worker(netless.get_context("spawn").Process):
    def run(self) -> None:
        sys.exit(0 if os.readlink("/proc/self/ns/net") != self.outside else 1)


def test_subclass_of_a_contexts_process() -> None:
    worker = Worker()
    worker.outside = os.readlink("/proc/self/ns/net")
    worker.start()
    worker.join()
    assert worker.exitcode == 0


def test_contexts_are_found_again() -> None:
    context = netless.get_context("spawn", Isolation(private=True))
    assert netless.get_context("spawn", Isolation(private=True)) is context
    assert netless.get_context("spawn") is not context
    assert pickle.loads(pickle.dumps(context)) is context
    assert context.get_context() is context
    assert context.get_context("fork") is netless.get_context("fork", Isolation(private=True))
    assert context.get_start_method() == "spawn"
    assert netless.get_context().get_start_method() == multiprocessing.get_start_method()
    with pytest.raises(ValueError, match="cannot find context"):
        netless.get_context("thread")


def test_manager_without_unix_sockets() -> None:
    with pytest.raises(ValueError, match="unix_sockets"):
        netless.get_context("spawn", Isolation(unix_sockets=False)).Manager()


def loopback_answers() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), 5).close()
    return os.readlink("/proc/self/ns/net")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("isolation", [Isolation(loopback=True), Isolation(unix_sockets=False)])
def test_isolation_reaches_the_worker(method, isolation) -> None:
    task = loopback_answers if isolation.loopback else unix_socket_outside
    with netless.ProcessPoolExecutor(
        1, multiprocessing.get_context(method), isolation=isolation
    ) as pool:
        assert pool.isolation == isolation
        found = pool.submit(task).result()
    assert found not in ("reached", os.readlink("/proc/self/ns/net"))


def unix_socket_outside() -> str:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0nobody is there")
    except OSError as error:
        return type(error).__name__
    return "reached"


def capabilities() -> list[int]:
    wanted = ("CapPrm", "CapEff", "CapBnd")
    lines = Path("/proc/self/status").read_text().splitlines()
    return [int(line.split()[1], 16) for line in lines if line.startswith(wanted)]


@pytest.mark.parametrize("method", METHODS)
def test_worker_has_what_a_program_would_have(method) -> None:
    """A fork does not lose its capabilities by itself, as execve makes a program do."""
    with netless.ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        permitted, effective, bounding = pool.submit(capabilities).result()
    for dropped in (12, 13, 19, 21):  # NET_ADMIN, NET_RAW, SYS_PTRACE, SYS_ADMIN
        assert not (permitted | effective | bounding) >> dropped & 1
    if os.geteuid() != 0:
        assert (permitted, effective) == (0, 0)


def test_threads_fork_workers_at_once(script) -> None:
    """What one thread has open for its own child must not stay open in another's worker."""
    done = script(
        """
        import threading
        import netless

        context = netless.get_context("fork")
        leave = context.Event()
        workers = []

        def start():
            for _ in range(10):
                worker = context.Process(target=leave.wait)
                worker.start()
                workers.append(worker)
                netless.run(["true"], preexec_fn=int, check=True)
                netless.run(["true"], extra_groups=[], check=True) if os.geteuid() == 0 else None

        import os
        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        leave.set()
        for worker in workers:
            worker.join()
        print({worker.exitcode for worker in workers}, len(workers))
        """,
        timeout=120,
    )
    assert done.stdout == "{0} 40\n", done.stderr


def test_forked_worker_keeps_signal_handlers(script) -> None:
    done = script(
        """
        import os, signal
        import netless

        signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

        def task():
            print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR2})
            os.kill(os.getpid(), signal.SIGUSR1)

        process = netless.get_context("fork").Process(target=task)
        process.start()
        process.join()
        print(process.exitcode, signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR2})
        """
    )
    assert sorted(done.stdout.split()) == ["0", "True", "True", "handled"], done.stderr


def test_multiprocessing_that_starts_processes_otherwise_is_refused() -> None:
    """A Python whose code does not use the functions that are replaced would not isolate."""

    def launch() -> None:
        os.getpid()

    with pytest.raises(netless.NetworkIsolationUnavailable) as caught:
        seeing(launch, os=Instead(os, fork=int))
    assert caught.value.cause == "python-unsupported"


# ---- the executor ----


def fail(message: str) -> None:
    raise ZeroDivisionError(message)


def set_up(name: str) -> None:
    os.environ["SET_UP"] = name


@pytest.mark.parametrize("method", METHODS)
def test_executor_is_the_standard_one(method) -> None:
    with netless.ProcessPoolExecutor(
        2, multiprocessing.get_context(method), set_up, ("so",)
    ) as pool:
        assert isinstance(pool, concurrent.futures.ProcessPoolExecutor)
        assert list(pool.map(os.getenv, ["SET_UP"] * 4)) == ["so"] * 4
        with pytest.raises(ZeroDivisionError, match="a reason") as caught:
            pool.submit(fail, "a reason").result()
        assert "in fail" in str(caught.value.__cause__)  # the worker's traceback
    with (
        netless.ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool,
        pytest.raises(concurrent.futures.process.BrokenProcessPool),
    ):
        pool.submit(os._exit, 3).result()


def test_executor_takes_a_context_of_ours_as_it_is() -> None:
    context = netless.get_context("spawn", Isolation(private=True))
    with netless.ProcessPoolExecutor(1, context) as pool:
        assert pool.isolation == Isolation(private=True)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")
def test_max_tasks_per_child() -> None:
    with netless.ProcessPoolExecutor(1, max_tasks_per_child=2) as pool:
        pids = [pool.submit(os.getpid).result() for _ in range(6)]
    assert len(set(pids)) == 3


def test_ten_thousand_tasks_leave_nothing_behind() -> None:
    def settle() -> tuple:
        return open_descriptors(), sorted(children())

    netless.require()
    with netless.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(int).result()  # the resource tracker is there to stay
    before, namespaces = settle(), live_network_namespaces()
    threads = len(os.listdir("/proc/self/task"))
    with netless.ProcessPoolExecutor(4, multiprocessing.get_context("fork")) as pool:
        assert sum(pool.map(int, range(10_000), chunksize=1)) == 49_995_000
    assert settle() == before
    assert len(os.listdir("/proc/self/task")) == threads
    assert network_namespaces_settle(namespaces)


# ---- what cannot be isolated ----

REFUSED = """
    import concurrent.futures, json, multiprocessing, os, sys
    import netless
    from netless import NetworkIsolationUnavailable

    marker = sys.argv[2]

    def task():
        open(marker, "w").close()

    def attempts(method):
        context = netless.get_context(method)
        yield lambda: context.Process(target=task).start()
        yield lambda: context.Pool(2)
        pool = netless.ProcessPoolExecutor(2, multiprocessing.get_context(method))
        yield lambda: pool.submit(task)
        yield lambda: pool.submit(task)
        pool.shutdown()

    if __name__ == "__main__":
        for attempt in attempts(sys.argv[1]):
            try:
                attempt()
                print("started")
            except NetworkIsolationUnavailable as error:
                print(error.cause, error.step)
        print(os.path.exists(marker), len(multiprocessing.active_children()))
"""


@pytest.mark.parametrize("method", METHODS)
def test_refused_isolation_is_the_reason(method, script, programs, tmp_path) -> None:
    deny = programs("deny.c")
    done = script(REFUSED, method, tmp_path / "marker", prefix=(deny, "unshare=EPERM", "--"))
    lines = done.stdout.splitlines()
    assert lines[:4] == ["blocked-by-seccomp unshare"] * 4, done.stderr + done.stdout
    assert lines[4] == "False 0"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="max_tasks_per_child is new in 3.11")
def test_worker_that_cannot_be_replaced_fails_the_pool(script) -> None:
    """The kept namespace is lost and no new one can be made, in the middle of the work."""
    done = script(
        """
        import os, sys, time
        import netless
        from netless import NetworkIsolationUnavailable, _native

        def lose():
            for sealed in _native._cache.sealed.values():
                os.close(sealed.user_fd)
            with open("/proc/sys/user/max_user_namespaces", "w") as file:
                file.write("0")

        if __name__ == "__main__":
            pool = netless.ProcessPoolExecutor(1, max_tasks_per_child=1)
            assert pool.submit(int).result() == 0
            futures = [pool.submit(time.sleep, 0.2) for _ in range(3)]
            workers = netless.get_context("spawn").Pool(1, maxtasksperchild=1)
            assert workers.apply(int) == 0
            jobs = [workers.apply_async(time.sleep, (0.2,)), workers.map_async(time.sleep, [0] * 3)]
            lose()
            for future in futures:
                print(type(future.exception(timeout=60)).__name__)
            try:
                pool.submit(int)
            except NetworkIsolationUnavailable as error:
                print(error.cause)
            pool.shutdown()
            for job in jobs:
                try:
                    job.get(60)
                except NetworkIsolationUnavailable as error:
                    print("Pool", type(error).__name__)
            workers.terminate()
            workers.join()
        """,
        prefix=("unshare", "--user", "--map-root-user"),
    )
    lines = done.stdout.split()
    refused = "NetworkIsolationUnavailable"
    assert lines[-6:] == [refused, "user-namespaces-disabled", "Pool", refused, "Pool", refused], (
        done.stderr + done.stdout
    )


STREAMS = """
import multiprocessing, os, socket, sys
import netless

context = (netless if sys.argv[1] == "netless" else multiprocessing).get_context("fork")
fd = int(sys.argv[3])

def speak():
    os.write(fd, b"out")

if __name__ == "__main__":
    os.close(fd)  # as a daemon does; the next socket comes to stand there, close-on-exec
    network = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    assert (network.fileno(), network.get_inheritable()) == (fd, False)
    worker = context.Process(target=speak)
    try:
        worker.start()
        worker.join()
        told = b"started"
    except netless.InheritedSocketError as error:
        told = b"refused %d" % error.fd
    os.write(3, told)
"""


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_a_forked_worker_has_no_network_socket_for_a_stream(fd: int, tmp_path: Path) -> None:
    """A worker never executes: what is close-on-exec stays open in it."""
    program = tmp_path / "streams.py"
    program.write_text(STREAMS)

    def received(which: str) -> tuple[bytes, bytes]:
        told, told_end = os.pipe()
        with socket.create_server(("127.0.0.1", 0)) as server, open(told, "rb") as told_file:
            port = str(server.getsockname()[1])
            command = [sys.executable, program, which, port, str(fd)]
            code = f'exec 3>&{told_end}; exec "$@"'
            process = subprocess.Popen(["bash", "-c", code, "bash", *command], pass_fds=[told_end])
            os.close(told_end)
            connection, _ = server.accept()
            with connection:
                connection.settimeout(60)
                came = connection.recv(100)
            assert process.wait(60) == 0
            return came, told_file.read()

    assert received("plain") == (b"out", b"started")
    assert received("netless") == (b"", b"refused %d" % fd)
