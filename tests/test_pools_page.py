"""The programs of docs/pools.md, run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import PATIENCE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pools.md"
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", flags=re.DOTALL | re.MULTILINE)
PROGRAMS = {
    f"{title}-{number}": block
    for title, text in SECTION.findall(PAGE.read_text())
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    if "sys.argv" in block
}
SHOWN = re.compile(r"print\(.*  # ((?:\[.*?\]|True|False)(?: \[.*?\])*)")


@pytest.mark.isolated
@pytest.mark.native
@pytest.mark.parametrize("program", PROGRAMS)
def test_prints_what_the_page_says(program: str, tmp_path: Path, listener4) -> None:
    source = PROGRAMS[program]
    file = tmp_path / "program.py"
    file.write_text(source)
    before = listener4.reached
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", file, "127.0.0.1", str(listener4.port)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    expected = "\n".join(SHOWN.findall(source)).replace("] [", "]\n[")
    assert done.stdout.strip() == expected, done.stderr
    assert listener4.reached > before, "the control did not get through"


ACROSS = """
import multiprocessing, sys
import netless

def attempt(action, *arguments):
    try:
        return action(*arguments)
    except PermissionError:
        return "refused"

def send(queue, answers):
    answers.put(attempt(lambda: queue.get(timeout=60).send("x") or "sent"))

def store(shared, answers):
    answers.put(attempt(lambda: shared.update(a=1) or "stored"))

def ask(context, target, argument):
    answers = context.Queue()
    process = context.Process(target=target, args=(argument, answers))
    process.start()
    found = answers.get(timeout=60)
    process.join()
    return found

if __name__ == "__main__":
    method, unix_sockets = sys.argv[1], sys.argv[2] == "True"
    context = netless.get_context(method, netless.Isolation(unix_sockets=unix_sockets))
    near, far = context.Pipe()
    queue = context.Queue()
    queue.put(far)
    print(ask(context, send, queue))
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        print(ask(context, store, shared))
    try:
        with context.Manager() as manager:
            shared = manager.dict()
            print(ask(context, store, shared))
    except ValueError:
        print("ValueError")
"""


@pytest.mark.isolated
@pytest.mark.native
@pytest.mark.parametrize("unix_sockets", [True, False])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_works_across_the_seal(method: str, unix_sockets: bool, script) -> None:
    done = script(ACROSS, method, str(unix_sockets))
    expected = (
        ["sent", "stored", "stored"] if unix_sockets else ["refused", "refused", "ValueError"]
    )
    assert done.stdout.split() == expected, done.stderr
