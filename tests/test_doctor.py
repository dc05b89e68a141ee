"""``netless doctor``: what a person reads, and the same for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support import PATIENCE, is_plain, need

pytestmark = pytest.mark.isolated
DOCTOR = [sys.executable, "-m", "netless", "doctor"]
REFUSE = (need("unshare"), "--user", "--map-root-user", "--", "sh", "-c",
          'echo 0 > "/proc/sys/user/$1"; shift; exec "$@"', "sh")  # fmt: skip


def doctor(*flags: str, prefix: tuple[str, ...] = ()) -> tuple[int, dict]:
    command = [*prefix, *DOCTOR, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def results(told: dict) -> dict[str, str]:
    return {entry["step"]: entry["result"] for entry in told["steps"]}


def test_layers_that_were_installed_and_left_out_are_told_where_isolation_works() -> None:
    status, told = doctor()
    assert status == 0
    assert told["schema"] == 2
    assert told["available"]
    assert results(told) == {
        "no-new-privs": "left out" if os.geteuid() == 0 else "installed",
        "bounding-set": "installed",
        "landlock": "installed",
        "seccomp": "installed",
    }


def test_a_layer_that_is_refused_is_left_out(programs) -> None:
    prefix = (programs("deny.c", "-static"), "seccomp=EPERM", "prctl@22=EPERM", "--")
    told = doctor(prefix=prefix)[1]
    assert results(told)["seccomp"] == "left out"
    assert results(told)["landlock"] == "installed"


@pytest.mark.parametrize("flags", [(), ("--loopback",)])
def test_only_the_step_that_failed_is_told(flags: tuple[str, ...]) -> None:
    """Which steps went before it was a guess: setgroups comes after uid-map, or not at all."""
    inside = () if os.geteuid() == 0 else (need("unshare"), "--user", "--map-root-user", "--")
    keep = (need("setpriv"), "--bounding-set=-setfcap", "--inh-caps=-all")
    status, told = doctor(*flags, prefix=(*inside, *keep))
    assert (status, told["error"]["step"]) == (1, "uid-map")
    assert told["steps"] == [{"step": "uid-map", "result": "failed"}]
    done = subprocess.run([*inside, *keep, *DOCTOR], stdout=subprocess.PIPE, text=True)
    assert "failed     uid-map" in done.stdout
    assert "setgroups" not in done.stdout


def test_the_step_that_failed_is_told_for_the_wrapper_as_well() -> None:
    told = doctor("--mechanism", "wrapper", prefix=(*REFUSE, "max_user_namespaces"))[1]
    assert told["steps"] == [{"step": "unshare", "result": "failed"}]
    assert doctor("--mechanism", "wrapper")[1]["steps"] == []


def test_flags_judge_the_request_that_they_describe() -> None:
    assert doctor("--loopback")[1]["available"]
    assert "unix-path" in doctor("--no-unix-sockets")[1]["guarantees"]
    assert doctor("--mechanism", "wrapper")[1]["mechanism"] == "wrapper"
    status, told = doctor("--mechanism", "filter")
    if os.geteuid() == 0:
        assert (status, told["error"]["cause"]) == (1, "privileged-caller")
    else:
        assert (status, told["mechanism"]) == (0, "filter")


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        ("max_user_namespaces", "user-namespaces-disabled"),
        ("max_net_namespaces", "network-namespace-limit"),
    ],
)
def test_failed_step_is_named_with_cause_and_hint(limit: str, cause: str) -> None:
    status, told = doctor(prefix=(*REFUSE, limit))
    assert status == 1
    assert told["error"]["cause"] == cause
    assert told["error"]["hint"]
    assert is_plain(told["error"]["summary"])
    assert results(told) == {"unshare": "failed"}
    assert "disk" not in told["error"]["hint"]


def test_root_is_told_what_its_children_share() -> None:
    for flags in ((), ("--private",)):
        told = doctor(*flags)[1]
        is_warned = any("that they share" in text for text in told["warnings"])
        assert is_warned == (told["facts"]["uid"] == 0 and "siblings" not in told["guarantees"])
        has_files = any("root-owned files" in text for text in told["warnings"])
        assert has_files == (told["facts"]["uid"] == 0)


def test_facts_that_matter_are_told() -> None:
    known = doctor()[1]["facts"]
    for name in ("extension", "landlock_abi", "seccomp_filtered", "container", "wsl", "chroot"):
        assert name in known
    assert known["uid"] == os.geteuid()


def test_text_reads_without_colour_and_says_the_same() -> None:
    done = subprocess.run(DOCTOR, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    for part in (
        "ready (namespace)",
        "closed  ip",
        "open    unix-path",
        "installed  landlock",
        "landlock abi",
    ):
        assert part in done.stdout


def test_contradicting_flags_are_an_error() -> None:
    command = [*DOCTOR, "--mechanism", "filter", "--loopback"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "netless: error: " in done.stderr
