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


def test_every_step_is_ok_where_isolation_works() -> None:
    status, told = doctor()
    assert status == 0
    assert told["schema"] == 1
    assert told["available"]
    assert set(results(told).values()) <= {"ok", "left out"}
    assert results(told)["seccomp"] == results(told)["landlock"] == "ok"
    expected = "left out" if os.geteuid() == 0 else "ok"
    assert results(told)["no-new-privs"] == expected


def test_flags_judge_the_request_that_they_describe() -> None:
    assert results(doctor("--loopback")[1])["loopback"] == "ok"
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
    assert results(told)["unshare"] == "failed"
    assert results(told)["clone"] == "ok"
    assert results(told)["seccomp"] == "not reached"
    assert "disk" not in told["error"]["hint"]


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
        "setns-net",
        "landlock abi",
    ):
        assert part in done.stdout


def test_contradicting_flags_are_an_error() -> None:
    command = [*DOCTOR, "--mechanism", "filter", "--loopback"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "netless: error: " in done.stderr
