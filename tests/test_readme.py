"""The README's transcript, run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from support import PATIENCE, need

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"```console\n(.*?)```", README.read_text(), flags=re.DOTALL)


def steps(block: str) -> list[tuple[str, str]]:
    """Commands and the output that the transcript shows after each."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line + "\n")
    return found


@pytest.mark.isolated
@pytest.mark.parametrize("block", BLOCKS)
def test_transcript_is_what_really_happens(block: str, tmp_path: Path) -> None:
    need("curl")
    mark = "---8<---"
    commands = steps(block)
    source = "set -m\n" + "".join(f"{command}\necho '{mark}'\n" for command, _ in commands)
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "LC_ALL": "C"},
    )
    shown = done.stdout.split(mark + "\n")
    for (command, expected), real in zip(commands, shown, strict=False):
        assert normal(real) == normal(expected), command


def normal(text: str) -> str:
    """Without what differs between versions of curl, and bash's word on the ended server."""
    return re.sub(r".*Terminated .*\n", "", re.sub(r"\(7\) .*", "(7)", text))
