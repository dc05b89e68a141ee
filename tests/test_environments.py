"""The environments of docs/environments.md, simulated: isolated as promised, or the right cause.

In every one of them `probe`, `require`, a real launch and `netless-exec` must say the same.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import netless
import support
from netless import _diagnosis, _launcher, _native
from support import MUST_ISOLATE, is_plain, need

pytestmark = pytest.mark.isolated

ENVIRONMENT = Path(__file__).resolve().parent / "programs" / "environment.py"
IS_ROOT = os.geteuid() == 0
ROOT_INSIDE = ("unshare", "--user", "--map-root-user")

CLONE_FLAGS = "clone&0x7e020000"  # CLONE_NEW*
DOCKER = (
    *("unshare=EPERM", "setns=EPERM", "mount=EPERM"),
    *(f"{CLONE_FLAGS}=EPERM", "clone3=ENOSYS"),
)
# `docker run` leaves these to uid 0.
DOCKER_CAPABILITIES = (
    "cap_chown,cap_dac_override,cap_fowner,cap_fsetid,cap_kill,cap_setgid,cap_setuid,cap_setpcap,"
    "cap_net_bind_service,cap_net_raw,cap_sys_chroot,cap_mknod,cap_audit_write,cap_setfcap"
)
# A namespace for each child gives all of these; a shared one needs Landlock for the last.
ALONE = {
    *("ip", "inherited-sockets", "vm-sockets", "unix-abstract", "key-upcalls", "tty-injection"),
    *("no-way-back", "siblings"),
}
EVERYTHING = ALONE if _native.landlock_abi() >= 6 else ALONE - {"siblings"}
# uid 0, real or of a user namespace, writes /proc/sys/net of what it shares.
AS_ROOT = ALONE - {"siblings"}
HERE = AS_ROOT if IS_ROOT else EVERYTHING
HAS_FILTER_MECHANISM = _native.landlock_abi() >= 4
NEEDS_FILTER = {"vm-sockets", "key-upcalls", "tty-injection"}


def observe(
    prefix: tuple[str, ...],
    isolation: dict | None = None,
    *,
    script: str = "",
    launcher: str | None = None,
) -> dict:
    """What all say there, each in a fresh process; they must agree.

    ``prefix`` executes a command; ``script`` is shell that runs before it, within;
    ``launcher`` is another netless-exec than the installed one.
    """
    need_prefix(prefix)
    options = isolation or {}
    answers = []
    for spawn_first in (False, True):
        python = (sys.executable, str(ENVIRONMENT))
        command = [*python, json.dumps({**options, "spawn-first": spawn_first})]
        if prefix:
            need(prefix[0])
        done = there(prefix, script, command)
        assert done.returncode == 0, done.stderr
        answers.append(agreed(json.loads(done.stdout)))
    assert comparable(answers[0]) == comparable(answers[1])
    compare_launcher(prefix, script, options, launcher or support.launcher(), answers[0])
    return answers[0]


def there(prefix: tuple[str, ...], script: str, command: list[str], **options):
    if script:
        command = ["sh", "-ec", f"{script}\nexec {shlex.join(command)}"]
    options = {"capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([*prefix, *command], **options)


def compare_launcher(
    prefix: tuple[str, ...], script: str, isolation: dict, launcher: str, found: dict
) -> None:
    """The launcher runs, or refuses with the same words."""
    link = ["readlink", "/proc/self/ns/net"]
    command = _launcher.command(launcher, link, netless.Isolation(**isolation))
    with tempfile.TemporaryFile("w+") as report:
        fd = report.fileno()
        command[1:1] = ["--fd-report", str(fd)]
        done = there(prefix, script, command, pass_fds=[fd])
        report.seek(0)
        line = report.read()
    if found.get("kind") == "NetworkIsolationUnavailable":
        step, number = found["step"] or "-", found["errno"] or 0
        assert (done.returncode, line) == (125, f"{step} {number} {found['cause']}\n")
        hint = found["hint"]
        summary = found["text"].removesuffix(f". Hint: {hint}")
        assert done.stderr == f"netless-exec: error: {summary}\nnetless-exec: hint: {hint}\n"
    elif "kind" in found:
        assert (done.returncode, line.split()[1:]) == (125, [str(found["errno"]), "-"])
    else:
        assert (done.returncode, line) == (0, ""), done.stderr
        is_outside = done.stdout.strip() == os.readlink("/proc/self/ns/net")
        assert is_outside == (found["mechanism"] == "filter")


def need_prefix(prefix: tuple[str, ...]) -> None:
    """Its programs are there; and where it wants to be root inside, that is allowed here."""
    for program in {"unshare", "setpriv", "env"} & set(prefix):
        need(program)
    if prefix[: len(ROOT_INSIDE)] == ROOT_INSIDE:
        done = subprocess.run([*ROOT_INSIDE, "true"], capture_output=True, text=True)
        if done.returncode and not MUST_ISOLATE:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr


def comparable(answer: dict) -> dict:
    return {name: answer[name] for name in answer if name not in ("own", "namespace")}


def agreed(found: dict) -> dict:
    """One answer of the three, if they are the same and true."""
    probe, require, spawn = (found[name] for name in ("probe", "require", "spawn"))
    assert probe == require
    if "kind" in probe:
        assert spawn == probe
        return probe
    assert spawn["mechanism"] == probe["mechanism"]
    assert spawn["status"] == 0
    assert spawn["namespace"].startswith("net:[")
    is_outside = spawn["namespace"] == found["own"]
    assert is_outside == (probe["mechanism"] == "filter")
    return {**spawn, "guarantees": set(probe["guarantees"])}


def expect_error(found: dict, cause: str, step: str | None, name: str | None, *words: str) -> None:
    assert found.get("kind") == "NetworkIsolationUnavailable", found
    assert (found["cause"], found["step"]) == (cause, step), found["text"]
    assert found["errno"] == (getattr(errno, name) if name else None)
    assert found["text"].startswith(netless.NetworkIsolationUnavailable.code)
    for word in (*words, found["hint"], *filter(None, (step, name))):
        assert word in found["text"]
    assert found["meaning"]
    assert found["hint"]
    assert is_plain(found["summary"])


def expect_filter(found: dict, cause: str, step: str, name: str) -> None:
    """The filter mechanism where Landlock makes it sound, else the refusal that led to it."""
    if HAS_FILTER_MECHANISM:
        assert found["mechanism"] == "filter", found
        assert {"ip", "no-way-back", "vm-sockets"} <= found["guarantees"]
    else:
        expect_error(found, cause, step, name)


@pytest.fixture(scope="module")
def deny(programs):
    program = programs("deny.c", "-static")
    return lambda *rules: (program, *rules, "--")


@pytest.fixture(scope="module")
def dynamic_launcher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What LD_PRELOAD works on."""
    output = tmp_path_factory.mktemp("dynamic") / _launcher.NAME
    support.build_launcher().link(output, [need("gcc")])
    return str(output)


@pytest.fixture(scope="module")
def powerless(programs):
    return ("env", f"LD_PRELOAD={programs('powerless.c', '-shared', '-fPIC')}")


def test_here() -> None:
    """The control of all the others."""
    found = observe(())
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] == HERE


# ---- containers' profiles ----


def test_docker_refuses_and_the_filter_is_not_taken_unasked(deny) -> None:
    expect_error(
        observe(deny(*DOCKER)), "blocked-by-seccomp", "unshare", "EPERM", 'fallback="filter"'
    )


def test_docker_with_the_filter_as_fallback(deny) -> None:
    found = observe(deny(*DOCKER), {"fallback": "filter"})
    if IS_ROOT:  # with all of root's powers no filter is sound
        expect_error(found, "blocked-by-seccomp", "unshare", "EPERM")
    else:
        expect_filter(found, "blocked-by-seccomp", "unshare", "EPERM")


@pytest.mark.parametrize("fallback", [None, "filter"])
def test_docker_as_its_root(fallback: str | None, deny) -> None:
    """uid 0 with the fourteen capabilities that Docker leaves it."""
    inside = () if IS_ROOT else ROOT_INSIDE
    keep = ("setpriv", f"--bounding-set=-all,{plus(DOCKER_CAPABILITIES)}", "--inh-caps=-all")
    found = observe((*inside, *keep, *deny(*DOCKER)), {"fallback": fallback})
    if fallback is None:
        expect_error(found, "blocked-by-seccomp", "unshare", "EPERM")
    else:
        expect_filter(found, "blocked-by-seccomp", "unshare", "EPERM")


INSTALL = Path(__file__).resolve().parent.parent / "docs" / "install.md"


@pytest.mark.parametrize("isolation", [{}, {"private": True}, {"loopback": True}])
@pytest.mark.parametrize("who", ["caller", "container's root"])
def test_docker_with_the_rule_of_the_documentation(isolation: dict, who: str, deny) -> None:
    """All else that Docker refuses stays refused."""
    if not INSTALL.exists():
        pytest.skip("the tests are not in a checkout")
    rules = [line for line in INSTALL.read_text().splitlines() if line.startswith('{"names"')]
    assert len(rules) == 1
    allowed = json.loads(rules[0])
    assert allowed["action"] == "SCMP_ACT_ALLOW"
    left = [rule for rule in DOCKER if rule.partition("=")[0] not in allowed["names"]]
    assert len(left) == len(DOCKER) - 2
    keep: tuple[str, ...] = ()
    if who != "caller":
        inside = () if IS_ROOT else ROOT_INSIDE
        capabilities = f"--bounding-set=-all,{plus(DOCKER_CAPABILITIES)}"
        keep = (*inside, "setpriv", capabilities, "--inh-caps=-all")
    found = observe((*keep, *deny(*left)), isolation)
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] >= (
        EVERYTHING if isolation else HERE if who == "caller" else AS_ROOT
    )


def plus(capabilities: str) -> str:
    return ",".join("+" + name.removeprefix("cap_") for name in capabilities.split(","))


@pytest.mark.parametrize("inside", [(), (*ROOT_INSIDE, "--")], ids=["rootful", "rootless"])
@pytest.mark.parametrize("isolation", [{}, {"private": True}, {"loopback": True}])
def test_podman_gets_a_namespace_for_each_child(isolation: dict, inside: tuple, deny) -> None:
    found = observe((*inside, *deny("setns=EPERM", "clone3=ENOSYS")), isolation)
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] == ALONE


def test_security_module_that_says_eacces(deny) -> None:
    """As AppArmor and SELinux do; here it is visibly a filter."""
    found = observe(deny("unshare=EACCES", f"{CLONE_FLAGS}=EACCES"))
    expect_error(found, "blocked-by-seccomp", "unshare", "EACCES")


def test_system_calls_of_newer_kernels_missing(deny) -> None:
    landlock = [
        f"landlock_{name}=ENOSYS" for name in ("create_ruleset", "add_rule", "restrict_self")
    ]
    found = observe(deny("clone3=ENOSYS", "close_range=ENOSYS", *landlock))
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] == EVERYTHING - {"siblings"}


def test_filter_without_landlock(deny) -> None:
    found = observe(deny("landlock_create_ruleset=ENOSYS"), {"mechanism": "filter"})
    cause = "privileged-caller" if IS_ROOT else "landlock-missing"
    expect_error(found, cause, None, None)


NO_SECCOMP = ("seccomp=EPERM", "prctl@22=EPERM")


def test_seccomp_refused(deny) -> None:
    found = observe(deny(*NO_SECCOMP))
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] == EVERYTHING - NEEDS_FILTER - {"siblings"}


def test_filter_without_seccomp(deny) -> None:
    found = observe(deny(*NO_SECCOMP), {"mechanism": "filter"})
    if IS_ROOT:
        expect_error(found, "privileged-caller", None, None)
    elif not HAS_FILTER_MECHANISM:
        expect_error(found, "landlock-missing", None, None)
    else:
        expect_error(found, "seccomp-missing", "seccomp", "EPERM")


# ---- limits ----


LIMITS = [
    ("max_user_namespaces", "user-namespaces-disabled"),
    ("max_net_namespaces", "network-namespace-limit"),
]


@pytest.mark.parametrize(("limit", "cause"), LIMITS)
@pytest.mark.parametrize("most", [0, 1])
def test_limit_of_zero_and_used_up(limit: str, cause: str, most: int, tmp_path: Path) -> None:
    """A limit of one is used up by a namespace that lives as long as the command."""
    need("setpriv")
    script = f"cd {tmp_path}; rm -f made; echo {most} > /proc/sys/user/{limit}"
    if most:
        kind = "--user --net" if "net" in limit else "--user"
        # Dies with this shell, which becomes the command.
        script += f"""
            unshare {kind} setpriv --pdeathsig KILL sh -c 'echo made; exec sleep 60' > made &
            until [ -s made ]; do sleep 0.01; done"""
    found = observe((*ROOT_INSIDE, "--"), script=script)
    expect_error(found, cause, "unshare", "ENOSPC", limit, "not the disk")


@pytest.mark.parametrize(("limit", "cause"), LIMITS)
def test_limit_of_zero_with_the_filter_as_fallback(limit: str, cause: str) -> None:
    """For a caller that no longer has the powers of root."""
    inner = (
        f'echo 0 > /proc/sys/user/{limit}; exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    )
    prefix = (*ROOT_INSIDE, "--", "sh", "-ec", inner, "sh")
    expect_filter(observe(prefix, {"fallback": "filter"}), cause, "unshare", "ENOSPC")
    expect_error(observe(prefix), cause, "unshare", "ENOSPC", limit)


def test_nesting_to_the_limit() -> None:
    """33 deep is the deepest that the kernel makes, and has no place for one more."""
    nested = (*ROOT_INSIDE, "--")
    assert observe(nested * 32)["guarantees"] == AS_ROOT
    expect_error(observe(nested * 33), "nested-too-deep", "unshare", "ENOSPC", "not the disk")


def test_outer_limit_used_up() -> None:
    """As Flatpak and `bwrap --disable-userns` have it: here, nothing shows the limit."""
    script = "echo 1 > /proc/sys/user/max_user_namespaces"
    inner = f'{script}; exec {shlex.join(ROOT_INSIDE)} -- "$@"'
    found = observe((*ROOT_INSIDE, "--", "sh", "-ec", inner, "sh"))
    expect_error(found, "nested-too-deep", "unshare", "ENOSPC", "used up", "Flatpak")


# ---- file systems ----

MOUNTS = (*ROOT_INSIDE, "--mount", "--")


# What is left of root when it has no capability, from within the shell that made the place.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def observe_without_powers(script: str, **isolation) -> dict:
    """In that place, without the capabilities that it was made with."""
    need("setpriv")
    inner = f'{script}; exec {shlex.join(POWERLESS)} "$@"'
    return observe((*MOUNTS, "sh", "-ec", inner, "sh"), isolation)


def test_no_proc() -> None:
    script = "mount -t tmpfs none /proc"
    found = observe(MOUNTS, script=script)
    expect_error(found, "proc-missing", "proc", "ENOENT", 'fallback="filter"')
    # No /proc tells where a child is: that it runs, and by which mechanism.
    source = (
        'import netless; there = netless.Isolation(fallback="filter");'
        'p = netless.Popen(["true"], isolation=there); print(p.mechanism, p.wait())'
    )
    inner = f'{script}; exec {shlex.join(POWERLESS)} "$@"'
    done = there((*MOUNTS, "sh", "-ec", inner, "sh"), "", [sys.executable, "-c", source])
    assert done.stdout == "filter 0\n" or not HAS_FILTER_MECHANISM, done.stderr


def test_proc_that_cannot_be_written() -> None:
    script = "mount --rbind /proc /proc; mount -o remount,bind,ro /proc"
    for found in (observe(MOUNTS, script=script), observe_without_powers(script)):
        expect_error(found, "refused", "uid-map", "EROFS", "read-only", 'fallback="filter"')
    found = observe_without_powers(script, fallback="filter")
    expect_filter(found, "refused", "uid-map", "EROFS")


def test_proc_of_another_pid_namespace() -> None:
    """/proc shows this process under a number that getpid does not say."""
    found = observe((*ROOT_INSIDE, "--pid", "--fork", "--"))
    assert found["guarantees"] == AS_ROOT


@pytest.mark.parametrize("hidepid", [1, 2])
def test_hidepid(hidepid: int) -> None:
    found = observe(
        (*MOUNTS[:-1], "--pid", "--fork", "--"),
        script=f"mount -t proc -o hidepid={hidepid} proc /proc",
    )
    assert found["guarantees"] == AS_ROOT


# A root directory that is no mount point, with all of this system's directories in it.
CHROOT = """#!/bin/sh -e
    mount -t tmpfs none "$PWD"; cd "$PWD"; mkdir jail
    for entry in /*; do
        if [ -L $entry ]; then cp -P $entry jail
        elif [ -d $entry ]; then mkdir jail$entry; mount --rbind $entry jail$entry
        fi
    done
    $1; shift; cd "$PWD"
    exec /usr/sbin/chroot jail "$@"
"""


def observe_in_chroot(folder: Path, command: str) -> dict:
    script = folder / "into-chroot"
    script.write_text(CHROOT)
    script.chmod(0o755)
    need("chroot")
    return observe((*MOUNTS, "env", f"--chdir={folder}", str(script), command))


def test_chroot(tmp_path: Path) -> None:
    found = observe_in_chroot(tmp_path, "true")
    expect_error(found, "inside-chroot", "unshare", "EPERM", "pivot_root")


def test_chroot_whose_root_is_a_mount_point(tmp_path: Path) -> None:
    """Looks like any other root: the error says that it may be one."""
    found = observe_in_chroot(tmp_path, "mount --rbind jail jail")
    expect_error(found, "refused", "unshare", "EPERM", "chroot")


# ---- capabilities and ids ----


def test_root_without_setfcap() -> None:
    inside = () if IS_ROOT else ROOT_INSIDE
    found = observe((*inside, "setpriv", "--bounding-set=-setfcap", "--inh-caps=-all"))
    words = ("CAP_SETFCAP", 'fallback="filter"')
    expect_error(found, "missing-capability", "uid-map", "EPERM", *words)
    found = observe((*inside, *POWERLESS))
    expect_error(found, "missing-capability", "uid-map", "EPERM", *words)
    found = observe((*inside, *POWERLESS), {"fallback": "filter"})
    expect_filter(found, "missing-capability", "uid-map", "EPERM")


@pytest.mark.parametrize("kept", ["setfcap", "setfcap,setuid,setgid", "setfcap,setuid"])
def test_root_with_few_capabilities(kept: str) -> None:
    """As a service with a CapabilityBoundingSet= of its own."""
    inside = () if IS_ROOT else ROOT_INSIDE
    found = observe((*inside, "setpriv", f"--bounding-set=-all,{plus(kept)}", "--inh-caps=-all"))
    assert found["guarantees"] == AS_ROOT


def test_caller_with_no_new_privs() -> None:
    assert observe(("setpriv", "--no-new-privs"))["guarantees"] == HERE


def test_caller_without_a_mapping() -> None:
    found = observe(("unshare", "--user", "--"))
    expect_error(found, "unmapped-caller", "unshare", "EPERM")


@pytest.mark.parametrize("isolation", [{}, {"private": True}, {"loopback": True}])
def test_powerless_namespace(isolation: dict, powerless, dynamic_launcher: str) -> None:
    """Ubuntu's case: whoever makes the namespace has no power in it, who joins it has."""
    found = observe(powerless, isolation, launcher=dynamic_launcher)
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] == (EVERYTHING if isolation else HERE)


@pytest.mark.parametrize("isolation", [{}, {"private": True}])
def test_powerless_namespace_for_each_child(
    isolation: dict, powerless, deny, dynamic_launcher: str
) -> None:
    prefix = (*deny("setns=EPERM"), *powerless)
    found = observe(prefix, isolation, launcher=dynamic_launcher)
    assert found["mechanism"] == "namespace"
    assert found["guarantees"] == ALONE


def test_powerless_namespace_for_each_child_has_no_loopback(
    powerless, deny, dynamic_launcher: str
) -> None:
    prefix = (*deny("setns=EPERM", f"{CLONE_FLAGS}=EPERM"), *powerless)
    found = observe(prefix, {"loopback": True}, launcher=dynamic_launcher)
    expect_error(found, "refused", "loopback", "EPERM", "loopback=True")


# ---- wording that no environment of ours can bring about ----

UID_MAP = "0 0 4294967295"
MOUNTINFO = "22 1 8:1 / / rw - ext4 /dev/sda1 rw"


def system(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], *, uid: int = 1000) -> None:
    """A system as _diagnosis sees it: these files and no others."""
    ordinary = {
        "/proc/self/uid_map": UID_MAP,
        "/proc/self/gid_map": UID_MAP,
        "/proc/self/mountinfo": MOUNTINFO,
        "/proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\nSeccomp:\t0\n",
        "/proc/sys/user/max_user_namespaces": "96364",
        "/proc/sys/user/max_net_namespaces": "96364",
    }
    monkeypatch.setattr(_diagnosis, "read", (ordinary | files).get)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: uid)


UBUNTU = {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}
DEBIAN = {"/proc/sys/kernel/unprivileged_userns_clone": "0\n"}
CONFINED = {"/proc/self/attr/apparmor/current": "some-program (enforce)\n"}
SELINUX = {"/sys/fs/selinux/enforce": "1"}
FILTERED = {"/proc/self/status": "Seccomp:\t2\n"}


@pytest.mark.parametrize(
    ("files", "step", "name", "cause", "words"),
    [
        (UBUNTU, "unshare", "EACCES", "apparmor-restricted", "userns,"),
        (UBUNTU, "unshare", "EPERM", "apparmor-restricted", "userns,"),
        (UBUNTU, "uid-map", "EPERM", "apparmor-restricted", "userns,"),
        (UBUNTU, "setgroups", "EACCES", "apparmor-restricted", "userns,"),
        (UBUNTU, "loopback", "EPERM", "apparmor-restricted", "userns,"),
        (CONFINED, "unshare", "EACCES", "apparmor-restricted", "userns,"),
        (CONFINED, "unshare", "EPERM", "refused", "security module"),
        # Docker on Ubuntu: the sysctl shows through, the refusal is the profile's.
        (UBUNTU | FILTERED, "unshare", "EPERM", "blocked-by-seccomp", "profile"),
        (SELINUX, "unshare", "EACCES", "blocked-by-selinux", "user_namespace"),
        (DEBIAN, "unshare", "EPERM", "user-namespaces-disabled", "unprivileged_userns_clone=1"),
        (FILTERED, "clone", "EPERM", "blocked-by-seccomp", "profile"),
        (FILTERED, "clone", "ENOSYS", "blocked-by-seccomp", "profile"),
        ({}, "unshare", "EUSERS", "user-namespaces-disabled", "not the disk"),
        ({}, "unshare", "EINVAL", "kernel-unsupported", "CONFIG_USER_NS"),
        ({}, "verify-net", "ENOENT", "kernel-unsupported", "CONFIG_NET_NS"),
        ({"/proc/self/status": None}, "verify-net", "ENOENT", "proc-missing", "mount proc"),
        ({}, "unshare-net", "ENOSPC", "network-namespace-limit", "private=True"),
        ({}, "channel", "EPIPE", "refused", "killed"),
        ({}, "stale", "", "refused", "descriptors"),
        ({}, "uid-map", "EROFS", "refused", "read-only"),
        ({}, "uid-map", "EIO", "refused", "uid_map"),
        ({}, "seccomp", "EINVAL", "seccomp-missing", "seccomp(2)"),
        ({}, "landlock", "E2BIG", "landlock-missing", "16 deep"),
    ],
)
def test_wording(
    files: dict, step: str, name: str, cause: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(monkeypatch, files)
    number = getattr(errno, name) if name else 0
    error = _diagnosis.explain(step, number, lambda flags: number)
    assert (error.cause, error.step, error.errno) == (cause, step, number or None)
    assert words in str(error)
    assert step in str(error)
    assert name in str(error)
    assert "disk" not in str(error).replace("not the disk", "")


def test_wsl1(monkeypatch: pytest.MonkeyPatch) -> None:
    system(monkeypatch, {})
    real = os.uname()
    release = os.uname_result((*real[:2], "4.4.0-22621-Microsoft", *real[3:]))
    monkeypatch.setattr(os, "uname", lambda: release)
    error = _diagnosis.explain("unshare", errno.EINVAL, lambda flags: errno.EINVAL)
    assert error.cause == "kernel-unsupported"
    assert "WSL 2" in error.hint


def test_every_isolation_step_has_its_purpose() -> None:
    """No error of a step is without a word on what the step is."""
    steps = list(netless._native.STEPS.values())
    isolating = steps[steps.index("channel") : steps.index("descriptors")]
    assert not set(isolating) - set(_diagnosis.PURPOSES) - set(_diagnosis.LAYER_REFUSED)


# ---- what is not a matter of isolation ----


DESCRIPTOR_LIMITS = """
    import json, os, resource, subprocess, sys
    import netless

    def outcome(module, isolation, warm):
        options = {"isolation": isolation} if isolation else {}
        command = ["readlink", "/proc/self/ns/net"]
        if warm:
            module.run(command, stdout=module.DEVNULL, **options)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            done = module.run(command, stdout=module.PIPE, text=True, **options)
        except Exception as error:
            return [type(error).__name__, getattr(error, "errno", None)]
        # The loader of the program needs a descriptor, too.
        return ["ran", done.stdout.strip() != own or done.returncode]

    own = os.readlink("/proc/self/ns/net")
    for limit in range(3, 20):
        for name, isolation in [
            ("plain", None), ("shared", netless.Isolation()),
            ("private", netless.Isolation(private=True)),
            ("loopback", netless.Isolation(loopback=True)),
        ]:
            for warm in (False, True):
                read_end, write_end = os.pipe()
                if os.fork() == 0:
                    module = netless if isolation else subprocess
                    result = [name, warm, limit, *outcome(module, isolation, warm)]
                    os.write(write_end, json.dumps(result).encode())
                    os._exit(0)
                os.close(write_end)
                print(os.read(read_end, 4096).decode())
                os.close(read_end)
                os.wait()
"""


def test_no_descriptors_left(script) -> None:
    """Every limit from "none" to "enough": it runs isolated, or as subprocess fails."""
    done = script(DESCRIPTOR_LIMITS)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == 17 * 4 * 2
    isolated = [outcome for outcome in outcomes if outcome[0] != "plain"]
    failed = {tuple(outcome[3:]) for outcome in outcomes if outcome[3] != "ran"}
    assert failed == {("OSError", errno.EMFILE)}
    assert all(outcome[4] for outcome in isolated if outcome[3] == "ran")
    for kind in ("plain", "shared", "private", "loopback"):
        assert {outcome[3] for outcome in outcomes if outcome[0] == kind} == {"ran", "OSError"}


PROCESS_LIMIT = """
    import os, resource, subprocess, sys
    import netless

    if os.geteuid() == 0:               # the limit is not for root
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    warm = sys.argv[1] == "warm"
    if warm:
        netless.run(["true"], check=True)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    for module in (subprocess, netless):
        try:
            module.run(["true"])
            print("ran", end=" ")
        except Exception as error:
            print(type(error).__name__, error.errno, end=" ")
    try:
        print(netless.probe().available)
    except Exception as error:
        print(type(error).__name__, error.errno)
"""


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_no_processes_left(start: str, script) -> None:
    done = script(PROCESS_LIMIT, start)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    eagain = ["BlockingIOError", str(errno.EAGAIN)]
    assert words[:4] == eagain * 2
    assert words[4:] == (["True"] if start == "warm" else eagain)


@pytest.mark.parametrize("name", ["ENOMEM", "EMFILE", "ENFILE", "EAGAIN"])
@pytest.mark.parametrize("call", ["unshare", "socketpair", "landlock_create_ruleset"])
def test_resource_errors_are_no_refusals(call: str, name: str, deny) -> None:
    # The launcher makes its namespaces by clone where it can.
    also = [f"{CLONE_FLAGS}={name}"] if call != "landlock_create_ruleset" else []
    found = observe(deny(f"{call}={name}", *also))
    if call == "landlock_create_ruleset":  # also asked for its version, which says: none
        assert found["guarantees"] == EVERYTHING - {"siblings"}
    else:
        assert found["errno"] == getattr(errno, name)
        assert found["kind"] == type(OSError(getattr(errno, name), "")).__name__
