"""Each step of the launch sequence made to fail: nothing runs, the error says which and why."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import _native
from support import need

pytestmark = pytest.mark.isolated

FAULT = Path(__file__).resolve().parent / "programs" / "fault.py"
IS_ROOT = os.geteuid() == 0


def inject(tmp_path: Path, injection: str, **options) -> tuple[dict, Path]:
    """What came of one launch with the injection, and the file its child would write."""
    need("strace")
    marker = tmp_path / "marker"
    done = subprocess.run(
        [
            *(sys.executable, str(FAULT), str(marker), json.dumps(options)),
            *(part for rule in injection.split() for part in ("-e", f"inject={rule}")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), marker


FIRST = 3 if IS_ROOT else 1  # prctl of the seal: root's child has asked for its powers before

# The step that must be named, what is injected into every process of the launch, errno, options.
# A number without a kernel meaning for the call (EIO, EXDEV) cannot be taken for a refusal.
ISOLATION_STEPS = [
    ("clone", "clone3:error=EPERM clone:error=EPERM", "EPERM", {}),
    ("channel", "socketpair:error=EIO", "EIO", {"warm": False}),
    ("unshare", "unshare:error=EPERM", "EPERM", {"warm": False}),
    ("proc", "readlink:error=ENOENT", "ENOENT", {"warm": False}),
    ("channel", "write:error=EIO:when=1", "EIO", {"warm": False}),  # the maker's only one
    ("open-namespace", "statx:error=EIO", "EIO", {"warm": False}),
    ("setns-user", "setns:error=EIO:when=1", "EIO", {}),
    ("setns-net", "setns:error=EIO:when=2", "EIO", {}),
    ("verify-net", "setns:retval=0:when=2", "EEXIST", {}),
    ("verify-user", "ioctl:error=EIO:when=1", "EIO", {}),
    ("unshare-net", "unshare:error=EIO", "EIO", {"isolation": {"private": True}}),
    ("loopback", "ioctl:error=EIO:when=3", "EIO", {"isolation": {"loopback": True}}),
    ("loopback", "ioctl:error=EIO:when=4", "EIO", {"isolation": {"loopback": True}}),
    ("landlock", "landlock_create_ruleset:error=EPERM", "EPERM", {}),
    ("landlock", "landlock_restrict_self:error=EPERM", "EPERM", {}),
    ("seccomp", "seccomp:error=EPERM", "EPERM", {}),
    (
        "seccomp",
        "seccomp:error=EPERM",
        "EPERM",
        {"warm": False, "isolation": {"unix_sockets": False}},
    ),
    ("verify-seccomp", "seccomp:retval=0", "EEXIST", {}),
    ("bounding-set" if IS_ROOT else "no-new-privs", f"prctl:error=EPERM:when={FIRST}", "EPERM", {}),
    ("bounding-set", f"prctl:error=EPERM:when={FIRST + 4}", "EPERM", {}),
]
ISOLATION_STEPS.append(("capabilities", "capset:error=EIO", "EIO", {"by_fork": True}))
if not IS_ROOT:
    ISOLATION_STEPS += [
        ("setgroups", "write:error=EPERM:when=2", "EPERM", {"warm": False}),
        ("gid-map", "write:error=EPERM:when=3", "EPERM", {"warm": False}),
    ]
if not IS_ROOT and _native.landlock_abi() >= 4:  # no filter holds root
    ISOLATION_STEPS.append(
        (
            "verify-landlock",
            "landlock_restrict_self:retval=0",
            "EEXIST",
            {"warm": False, "isolation": {"mechanism": "filter"}},
        )
    )
# Reports are sent again after a signal, maps are not written again.
ISOLATION_STEPS.append(("uid-map", "write:error=EINTR:when=1", "EINTR", {"warm": False}))
# Not steps of a child on Linux; and those of the other user.
NOT_HERE = {"none", "unsupported", "stale", "memory", "sandbox-init"}
if IS_ROOT:
    NOT_HERE |= {"no-new-privs", "setgroups", "gid-map"}
if IS_ROOT or _native.landlock_abi() < 4:
    NOT_HERE |= {"verify-landlock"}


@pytest.mark.parametrize(
    ("step", "injection", "name", "options"),
    ISOLATION_STEPS,
    ids=[f"{case[0]}-{case[1].partition(':')[0]}-{i}" for i, case in enumerate(ISOLATION_STEPS)],
)
def test_failed_isolation_step_runs_nothing(
    step: str, injection: str, name: str, options: dict, tmp_path: Path
) -> None:
    result, marker = inject(tmp_path, injection, **options)
    assert not marker.exists()
    assert result["kind"] == "NetworkIsolationUnavailable", result
    assert result["step"] == step
    assert result["errno"] == getattr(errno, name)
    assert result["zombies"] == 0
    # The kept namespace's pair may have been made, or remade.
    assert result["descriptors"] in (0, 2, -2)


def test_every_step_is_made_to_fail() -> None:
    """What the launch sequence gains, the list above gains too."""
    first_ordinary = _native.lib.NETLESS_STEP_DESCRIPTORS
    steps = {name for number, name in _native.STEPS.items() if number < first_ordinary}
    assert steps - NOT_HERE == {case[0] for case in ISOLATION_STEPS}


ORDINARY_STEPS = [
    ("dup3", "dup3:error=EIO dup2:error=EIO", "EIO", {"stdout": subprocess.PIPE}),
    ("chdir", "chdir:error=EIO", "EIO", {"cwd": "/"}),
    ("setsid", "setsid:error=EIO", "EIO", {"start_new_session": True}),
    ("signals", "rt_sigaction:error=EFAULT", "EFAULT", {}),
    ("exec", "execve:error=EIO", "EIO", {}),
    ("exec-after-preexec", "execve:error=EIO", "EIO", {"preexec": True}),
    ("close", "close_range:error=EIO getdents64:error=EIO prlimit64:error=EIO", "EIO", {}),
]
if sys.version_info >= (3, 11):
    ORDINARY_STEPS.append(("setpgid", "setpgid:error=EIO", "EIO", {"process_group": 0}))
if IS_ROOT:
    ORDINARY_STEPS += [
        ("setgroups", "setgroups:error=EIO", "EIO", {"extra_groups": [7]}),
        ("setresgid", "setresgid:error=EIO", "EIO", {"group": 7}),
        ("setresuid", "setresuid:error=EIO", "EIO", {"user": 7}),
    ]


@pytest.mark.parametrize(
    ("injection", "name", "options"),
    [case[1:] for case in ORDINARY_STEPS],
    ids=[case[0] for case in ORDINARY_STEPS],
)
def test_failed_ordinary_step_raises_what_subprocess_raises(
    injection: str, name: str, options: dict, tmp_path: Path
) -> None:
    result, marker = inject(tmp_path, injection, **options)
    assert not marker.exists()
    assert result["kind"] == "OSError", result
    assert result["errno"] == getattr(errno, name)
    assert result["zombies"] == 0
    assert result["descriptors"] == 0


@pytest.mark.parametrize("isolation", [{}, {"private": True}, {"map_root": True}])
@pytest.mark.parametrize("call", ["setns", "unshare"])
def test_a_call_that_lies_is_found_out(call: str, isolation: dict, tmp_path: Path) -> None:
    """The call claims success and does nothing: the proof ends the child."""
    result, marker = inject(tmp_path, f"{call}:retval=0", isolation=isolation)
    if marker.exists():  # that call was not on this way in
        assert marker.read_text().strip() != result["namespace"]
        assert result["kind"] is None
    else:
        assert result["kind"] == "NetworkIsolationUnavailable", result
        # Without the setns that lied, an unprivileged child may not even try to unshare; with
        # an unshare that lies there is no new namespace whose maps could be written either.
        assert result["step"] in ("verify-net", "unshare-net", "uid-map")
    assert result["zombies"] == 0


def test_inherited_namespace_is_never_taken_for_the_sealed_one(tmp_path: Path) -> None:
    """Making lies while nothing is kept: the maker's namespaces are the caller's own."""
    result, marker = inject(tmp_path, "unshare:retval=0", warm=False)
    assert not marker.exists()
    assert result["kind"] == "NetworkIsolationUnavailable", result
    assert result["zombies"] == 0


def test_setns_refused_makes_a_namespace_per_child(tmp_path: Path) -> None:
    """Podman's profile: unshare is allowed, setns is not."""
    result, marker = inject(tmp_path, "setns:error=EPERM")
    assert result["kind"] is None, result
    assert result["status"] == 0
    assert marker.read_text().strip() != result["namespace"]
    assert result["zombies"] == 0


@pytest.mark.parametrize("name", ["ENOMEM", "EAGAIN"])
def test_resource_errors_are_what_subprocess_raises(name: str, tmp_path: Path) -> None:
    result, marker = inject(tmp_path, f"clone3:error={name} clone:error={name}")
    assert not marker.exists()
    expected = type(OSError(getattr(errno, name), "")).__name__
    assert (result["kind"], result["errno"]) == (expected, getattr(errno, name))
    assert result["zombies"] == 0


@pytest.mark.parametrize("name", ["ENOSYS", "EPERM", "EINVAL"])
def test_without_clone3_clone_does_the_work(name: str, tmp_path: Path) -> None:
    """Docker's profile answers ENOSYS, Linux before 5.5 EINVAL."""
    result, marker = inject(tmp_path, f"clone3:error={name}")
    assert (result["kind"], result["status"]) == (None, 0)
    assert marker.read_text().strip() != result["namespace"]


def test_limit_of_zero_is_not_called_a_full_disk(script) -> None:
    """user.max_net_namespaces = 0, in a namespace of the test's own."""
    done = script(
        """
        import errno, os, sys
        import netless
        with open("/proc/sys/user/max_net_namespaces", "w") as limit:
            limit.write("0")
        try:
            netless.run(["touch", sys.argv[1]])
        except netless.NetworkIsolationUnavailable as error:
            print(error.cause, errno.errorcode[error.errno], os.path.exists(sys.argv[1]))
        """,
        "marker",
        prefix=(need("unshare"), "--user", "--map-root-user", "--"),
    )
    assert done.stdout.split() == ["network-namespace-limit", "ENOSPC", "False"], done.stderr


def test_missing_program_is_an_ordinary_error(marker) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        netless.run(["/no/such/program"])
    assert caught.value.filename == "/no/such/program"
    assert caught.value.errno == errno.ENOENT
