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
