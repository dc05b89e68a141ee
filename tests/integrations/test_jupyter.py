"""Kernels by jupyter_client, nbclient, nbconvert and papermill, as on docs/integrations.md."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from hosting import WITHOUT_NAMESPACES, Place, blocks
from support import Listener, need, need_module

PLAIN = {
    "display_name": "plain",
    "language": "python",
    "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
}
PROVISIONER = {"provisioner_name": "netless-provisioner"}
ISOLATED = {**PLAIN, "metadata": {"kernel_provisioner": PROVISIONER}}
CELL = """
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 5).close()
except OSError as error:
    print("refused", error.errno)
else:
    print("reached")
"""
UNREACHABLE, REFUSED = "refused 101\n", "refused 111\n"
# What the scripts below share.
CLIENT = """
    import os, sys, time
    from jupyter_client.manager import start_new_kernel

    def run(client, code):
        text = []
        def take(message):
            content = message["content"]
            text.append(content.get("text", content.get("ename", "")))
        client.execute_interactive(code, timeout=60, output_hook=take)
        return "".join(text)

    name, cell = sys.argv[1:]
"""


@pytest.fixture(autouse=True)
def kernels(place: Place):
    need_module("ipykernel")
    folder = place.folder / "jupyter" / "kernels"

    def add(name: str, specification: dict) -> None:
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.json").write_text(json.dumps(specification))

    place.environment["JUPYTER_PATH"] = str(folder.parent)
    place.environment["JUPYTER_RUNTIME_DIR"] = str(place.folder / "runtime")
    add("plain", PLAIN)
    add("isolated", ISOLATED)
    yield add
    # Connection files: they hold the key, and the names of the sockets.
    assert list(place.folder.glob("runtime/kernel-*")) == []


@pytest.mark.parametrize("name", ["plain", "isolated"])
def test_kernel_is_cut_off_interrupted_and_restarted(
    name: str, place: Place, listener4: Listener
) -> None:
    source = """
        manager, client = start_new_kernel(kernel_name=name)
        first = manager.provisioner.pid
        print(run(client, cell), end="")
        if name == "isolated":
            folder = os.path.dirname(manager.ip)
            assert os.stat(folder).st_mode & 0o777 == 0o700
            assert len(os.listdir(folder)) == 5

        client.execute("import time; time.sleep(600)")
        while client.get_iopub_msg(timeout=60)["content"].get("execution_state") != "busy":
            pass
        time.sleep(0.3)
        manager.interrupt_kernel()
        print(client.get_shell_msg(timeout=60)["content"]["ename"])

        for now in (False, True):
            manager.restart_kernel(now=now)
            client.wait_for_ready(timeout=60)
            print(run(client, cell), end="")
        assert manager.provisioner.pid != first
        client.stop_channels()
        manager.shutdown_kernel()
        print(os.listdir(os.environ["TMPDIR"]))
    """
    before = listener4.reached
    done = place.script(dedent(CLIENT) + dedent(source), name, CELL.format(port=listener4.port))
    outcome = UNREACHABLE if name == "isolated" else "reached\n"
    assert done.stdout == f"{outcome}KeyboardInterrupt\n{outcome}{outcome}[]\n", done.stderr
    assert (listener4.reached - before == 0) == (name == "isolated")


def test_kernelspec_of_the_page(place: Place, listener4: Listener, kernels) -> None:
    """With a loopback of its own, in which its own server is reached and the machine's is not."""
    (specification,) = map(json.loads, blocks("integrations.md", "json"))
    kernels("no-network", specification)
    source = """
        manager, client = start_new_kernel(kernel_name=name)
        print(run(client, cell), end="")
        own = "s = socket.create_server(('127.0.0.1', 0)); "
        own += "socket.create_connection(s.getsockname()); print('its own is reached')"
        print(run(client, own), end="")
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    """
    before = listener4.reached
    done = place.script(
        dedent(CLIENT) + dedent(source), "no-network", CELL.format(port=listener4.port)
    )
    assert done.stdout == f"{REFUSED}its own is reached\n", done.stderr
    assert listener4.reached == before


def notebook(place: Place, port: int) -> Path:
    need_module("nbformat")
    import nbformat

    file = place.folder / "notebook.ipynb"
    cells = [nbformat.v4.new_code_cell(CELL.format(port=port))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
    return file


def output(file: Path) -> str:
    import nbformat

    return nbformat.read(file, as_version=4).cells[0].outputs[0]["text"]


HOSTS = {
    "nbclient": "jupyter execute --kernel_name={kernel} --output=out notebook.ipynb",
    "nbconvert": "jupyter nbconvert --to notebook --execute --output out"
    " --ExecutePreprocessor.kernel_name={kernel} notebook.ipynb",
    "papermill": "papermill --no-progress-bar -k {kernel} notebook.ipynb out.ipynb",
}


@pytest.mark.parametrize("host", HOSTS)
def test_executes_notebooks(host: str, place: Place, listener4: Listener) -> None:
    need_module(host)
    notebook(place, listener4.port)
    for kernel, expected in (("isolated", UNREACHABLE), ("plain", "reached\n")):
        before = listener4.reached
        place.run(*HOSTS[host].format(kernel=kernel).split())
        assert output(place.folder / "out.ipynb") == expected
        assert (listener4.reached == before) == (kernel == "isolated")


def test_default_provisioner_is_for_every_kernelspec(place: Place, listener4: Listener) -> None:
    """As the page writes it."""
    file = notebook(place, listener4.port)
    (line,) = blocks("integrations.md", "console")
    before = listener4.reached
    place.run("sh", "-c", line.removeprefix("$ ").strip() + " --kernel_name=plain --inplace")
    assert output(file) == UNREACHABLE
    assert listener4.reached == before
    place.run("jupyter", "execute", "notebook.ipynb", "--kernel_name=plain", "--inplace")
    assert output(file) == "reached\n"


# ---- what cannot be ----

START = """
    import logging, os, sys
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name=sys.argv[1])
    manager.log.addHandler(logging.StreamHandler())
    try:
        manager.start_kernel()
    except Exception as error:
        print(type(error).__name__, error)
    print(manager.has_kernel, os.listdir(os.environ["TMPDIR"]))
"""


def test_kernel_that_cannot_be_isolated_is_not_started(place: Place, kernels) -> None:
    need("unshare")
    marker = place.folder / "the kernel ran"
    argv = ["/bin/sh", "-c", 'echo ran >"$0"; exec sleep 600', str(marker)]
    kernels("marks", {**PLAIN, "argv": argv})
    kernels("marks-isolated", {**ISOLATED, "argv": argv})
    done = place.script(START, "marks-isolated", prefix=WITHOUT_NAMESPACES)
    assert done.stdout.startswith(
        "NetworkIsolationUnavailable cave_sandbox_os_network_isolation_unavailable: "
    )
    assert done.stdout.endswith("\nFalse []\n")
    assert "NetworkIsolationUnavailable: cave_sandbox" in done.stderr, "not in the log"
    assert not marker.exists()
    control = dedent(START) + "import time; time.sleep(0.5); manager.shutdown_kernel(now=True)"
    assert place.script(control, "marks", prefix=WITHOUT_NAMESPACES).stdout.startswith("True ")
    assert marker.exists()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/no/such/kernel"], "FileNotFoundError [Errno 2] No such file or directory"),
        (["no-such-kernel"], "FileNotFoundError [Errno 2] No such file or directory"),
        (["/etc/passwd"], "PermissionError [Errno 13] Permission denied"),
    ],
)
def test_missing_kernel_is_an_error_at_once(argv, expected, place: Place, kernels) -> None:
    kernels("missing", {**ISOLATED, "argv": argv})
    done = place.script(START, "missing")
    assert done.stdout == f"{expected}: '{argv[0]}'\nFalse []\n"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lopback": True}, "TypeError netless-provisioner: unknown config lopback"),
        ({"loopback": "yes"}, "TypeError Isolation.loopback must be a bool"),
        ({"unix_sockets": False}, "ValueError netless-provisioner: a kernel is reached by AF_UNIX"),
        ({"mechanism": "magic"}, "ValueError unknown mechanism 'magic'"),
    ],
)
def test_config_that_cannot_be_meant_is_an_error(config, expected, place, kernels) -> None:
    provisioner = {**PROVISIONER, "config": config}
    kernels("odd", {**PLAIN, "metadata": {"kernel_provisioner": provisioner}})
    done = place.script(START, "odd")
    assert done.stdout.startswith(expected), done.stdout + done.stderr
    assert done.stdout.endswith("\nFalse []\n")


def test_folder_goes_with_a_manager_that_was_forgotten(place: Place) -> None:
    """No shutdown, no cleanup: the folder goes at exit; the kernel sees its parent gone."""
    source = """
        manager, client = start_new_kernel(kernel_name=name)
        print(os.listdir(os.environ["TMPDIR"]) != [])
        client.stop_channels()
    """
    assert place.script(dedent(CLIENT) + dedent(source), "isolated", "").stdout == "True\n"


def test_long_temporary_folder_is_not_used(place: Place, listener4: Listener) -> None:
    """The name of a socket has 107 characters at most."""
    long = place.folder / ("x" * 100)
    long.mkdir()
    source = """
        manager, client = start_new_kernel(kernel_name=name)
        print(run(client, "print('answers')"), end="")
        folder = os.path.dirname(manager.ip)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        print(os.path.exists(folder))
    """
    done = place.script(dedent(CLIENT) + dedent(source), "isolated", "", env={"TMPDIR": str(long)})
    assert done.stdout == "answers\nFalse\n", done.stderr


def test_a_second_start_of_one_manager(place: Place, listener4: Listener) -> None:
    """Whose context is not its own, since it ends that with its first kernel."""
    source = """
        import zmq
        from jupyter_client.manager import KernelManager

        manager = KernelManager(kernel_name=name, context=zmq.Context())
        for now in (False, True):
            manager.start_kernel()
            client = manager.client()
            client.start_channels()
            client.wait_for_ready(timeout=60)
            print(run(client, cell), end="")
            client.stop_channels()
            manager.shutdown_kernel(now=now)
    """
    done = place.script(
        dedent(CLIENT) + dedent(source), "isolated", CELL.format(port=listener4.port)
    )
    assert done.stdout == 2 * UNREACHABLE, done.stderr
