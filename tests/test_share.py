"""What is installed for shells and ``man``: it knows what the parser knows."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import pytest

from netless.cli import make_parser
from support import PATIENCE, need

pytestmark = pytest.mark.build
SHARE = Path(__file__).resolve().parent.parent / "share"
BASH = SHARE / "bash-completion" / "completions" / "netless"
ZSH = SHARE / "zsh" / "site-functions" / "_netless"
FISH = SHARE / "fish" / "vendor_completions.d" / "netless.fish"
MANUAL = SHARE / "man" / "man1" / "netless.1"

if not SHARE.exists():
    pytest.skip("the tests are not in a checkout", allow_module_level=True)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for name in parser._option_string_actions if name.startswith("--")}


PARSER = make_parser()
COMMANDS: dict[str, argparse.ArgumentParser] = next(
    action.choices for action in PARSER._actions if isinstance(action.choices, dict)
)
EVERY = options(PARSER).union(*map(options, COMMANDS.values()))


def complete_in_bash(*words: str) -> set[str]:
    script = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _netless "$1" "${@: -1}" "${@: -2:1}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = [need("bash"), "--norc", "-euc", script, "bash", BASH, *words]
    return set(subprocess.check_output(command, text=True, timeout=PATIENCE).split())


def complete_in_fish(line: str) -> set[str]:
    script = "source $argv[1]; complete --do-complete $argv[2]"
    command = [need("fish"), "--no-config", "-c", script, FISH, line]
    told = subprocess.check_output(command, text=True, timeout=PATIENCE)
    return {line.partition("\t")[0] for line in told.splitlines()}


def test_bash_offers_what_the_parser_takes() -> None:
    assert complete_in_bash("netless", "") == options(PARSER) | COMMANDS.keys()
    assert complete_in_bash("netless", "d") == {"doctor"}
    for name, parser in COMMANDS.items():
        assert complete_in_bash("netless", name, "") - {"--"} == options(parser)
    assert complete_in_bash("netless", "run", "--mechanism", "n") == {"namespace"}
    assert complete_in_bash("netless", "run", "--fallback", "") == {"filter"}


def test_bash_completes_the_program_after_the_dashes() -> None:
    assert "bash" in complete_in_bash("netless", "run", "--loopback", "--", "bas")
    assert "--loopback" not in complete_in_bash("netless", "run", "--", "--l")


def test_fish_offers_what_the_parser_takes() -> None:
    assert complete_in_fish("netless ") == COMMANDS.keys()
    assert complete_in_fish("netless --") == options(PARSER)
    for name, parser in COMMANDS.items():
        assert complete_in_fish(f"netless {name} --") == options(parser)
    assert complete_in_fish("netless run --mechanism n") == {"namespace"}


def test_zsh_names_what_the_parser_takes() -> None:
    subprocess.run([need("zsh"), "-n", ZSH], check=True)
    text = ZSH.read_text()
    assert set(re.findall(r"(?<=[')])--[\w-]+", text)) == EVERY
    assert all(name in text for name in COMMANDS)


def test_manual_names_what_the_parser_takes() -> None:
    text = MANUAL.read_text().replace("\\-", "-")
    named = set(re.findall(r"--[a-z][\w-]*", text))
    assert named == EVERY
    assert all(f"netless {name}" in text for name in COMMANDS)
    assert {"125", "126", "127"} <= set(re.findall(r"\d{3}", text))
