"""The one place that turns a failed launch step and its errno into cause and hint.

The kernel's errno alone is ambiguous (a limit of zero is "No space left on
device"), so the wording looks at the system.  Whether isolation works is never
decided here: only the launch sequence itself decides that.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from ._errors import NetworkIsolationUnavailable

CLONE_NEWUSER = 0x10000000
CAP_SETFCAP = 31
MOST_NAMESPACES = 0x7FFFFFFF  # INT_MAX, the limit that a new user namespace starts with

MAKING = ("clone", "unshare", "unshare-net")
MAPPING = ("setgroups", "uid-map", "gid-map")
LAYER_ERRORS = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.E2BIG,
)
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
PROC_STEPS = ("proc", "open-namespace", "verify-net", *MAPPING)


class Finding:
    """Cause, what the errno means here, the narrowest remedy, and all that in plain words."""

    __slots__ = ("cause", "hint", "meaning", "summary")

    def __init__(self, cause: str, meaning: str, hint: str, summary: str) -> None:
        self.cause = cause
        self.meaning = meaning
        self.hint = hint
        self.summary = summary


def read(path: str) -> str | None:
    """A small file's text, or None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def sysctl(name: str) -> int | None:
    """The value of ``/proc/sys/NAME`` as an integer, or None."""
    text = read("/proc/sys/" + name.replace(".", "/"))
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def status(field: str) -> str | None:
    """One field of ``/proc/self/status``."""
    for line in (read("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return None


def is_chroot() -> bool:
    """No mount point at "/": the root directory is not the root of a mount."""
    mounts = read("/proc/self/mountinfo")
    return bool(mounts) and not any(line.split()[4] == "/" for line in (mounts or "").splitlines())


def has_own_id_mapped(which: str, number: int) -> bool:
    """Is the caller's own id in its user namespace's map? Where that is not told, it may be."""
    text = read(f"/proc/self/{which}_map")
    if text is None:
        return True
    for line in text.splitlines():
        inside, _, count = map(int, line.split())
        if inside <= number < inside + count:
            return True
    return False


def is_nested() -> bool:
    """Is this process in a user namespace other than the initial one?"""
    return (read("/proc/self/uid_map") or "").split() != ["0", "0", "4294967295"]


def has_capability(number: int) -> bool:
    """Is the capability in the effective set? Where /proc does not tell, it may be."""
    found = status("CapEff")
    return found is None or bool(int(found, 16) >> number & 1)


def is_filtered() -> bool:
    """Is a seccomp filter in force for this process?"""
    return status("Seccomp") == "2"


def is_apparmor_restricted() -> bool:
    """Is Ubuntu's restriction of unprivileged user namespaces on?"""
    return sysctl("kernel.apparmor_restrict_unprivileged_userns") == 1


def is_confined() -> bool:
    """Is an AppArmor profile in force for this process?"""
    return (read("/proc/self/attr/apparmor/current") or "").strip().endswith("(enforce)")


def is_selinux_enforcing() -> bool:
    """Is SELinux there and enforcing?"""
    return (read("/sys/fs/selinux/enforce") or "").strip() == "1"


def container() -> str | None:
    """The container runtime around this process, as far as it shows itself."""
    if os.path.exists("/run/.containerenv"):
        return "podman"
    if os.path.exists("/.dockerenv"):
        return "docker"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return os.environ.get("container") or None  # noqa: SIM112 (systemd-nspawn, lxc, podman)


def is_wsl1() -> bool:
    """WSL 1 is no Linux kernel: its release ends in ``-Microsoft``."""
    return os.uname().release.endswith("-Microsoft")


# True in every place whose hint has it; what it takes is looked at when it is asked for.
OR_FILTER = 'or, without the capabilities of root, ask for Isolation(fallback="filter")'
SECCOMP = Finding(
    "blocked-by-seccomp",
    "a seccomp filter refuses new namespaces (a container's default profile, or systemd's "
    "RestrictNamespaces=)",
    "run the container with a seccomp profile that allows unshare, clone and setns; or ask for "
    'Isolation(fallback="filter"); or run the whole container with --network none',
    "A system call filter around this process, such as a container's, refuses new namespaces.",
)
APPARMOR = Finding(
    "apparmor-restricted",
    "AppArmor restricts unprivileged user namespaces (Ubuntu 23.10 and newer, or this program's "
    "own profile)",
    "install an AppArmor profile with the rule `userns,` for this program",
    "AppArmor keeps this program from using a new user namespace.",
)
SELINUX = Finding(
    "blocked-by-selinux",
    "SELinux denies new user namespaces",
    "allow user_namespace create for this domain in the SELinux policy",
    "The SELinux policy denies new user namespaces.",
)
NO_PROC = Finding(
    "proc-missing",
    "/proc does not show this process",
    f"mount proc at /proc, then try again; {OR_FILTER}",
    "The proc file system does not show this process.",
)
READ_ONLY_PROC = Finding(
    "refused",
    "/proc is mounted read-only, and a new user namespace is set up by writing there",
    f"mount proc read-write; {OR_FILTER}",
    "The proc file system is read only, so a new user namespace cannot be set up.",
)
UNWRITABLE_PROC = Finding(
    "refused",
    "a sandbox around this process lets nobody write to /proc, and a new user namespace is set up "
    "by writing there",
    f"allow writing to /proc in that sandbox; {OR_FILTER}",
    "A sandbox around this process keeps a new user namespace from being set up.",
)
USERNS_SYSCTL = Finding(
    "user-namespaces-disabled",
    "user.max_user_namespaces is used up or 0 (this is a limit, not the disk)",
    "raise it: sysctl user.max_user_namespaces=10000",
    "This system's limit for user namespaces is used up or zero.",
)
DEBIAN_SYSCTL = Finding(
    "user-namespaces-disabled",
    "kernel.unprivileged_userns_clone is 0",
    "set it: sysctl kernel.unprivileged_userns_clone=1",
    "This system lets nobody but root make user namespaces.",
)
NETNS_LIMIT = Finding(
    "network-namespace-limit",
    "user.max_net_namespaces is used up or 0 (this is a limit, not the disk)",
    "raise it: sysctl user.max_net_namespaces=10000; children share one namespace unless "
    "private=True or loopback=True asks for more",
    "This system's limit for network namespaces is used up or zero.",
)
NESTED = Finding(
    "nested-too-deep",
    "user namespaces nest at most 32 deep (this is a limit, not the disk); or an outer "
    "namespace's user.max_user_namespaces is used up",
    "start this from an outer namespace (outside Flatpak, or without bwrap --disable-userns); "
    f"{OR_FILTER}",
    "User namespaces are nested too deep here, or an outer limit for them is used up.",
)
UNMAPPED = Finding(
    "unmapped-caller",
    "the caller's own uid or gid has no mapping in its user namespace",
    "map the caller's ids when that namespace is made, or run from the parent namespace",
    "The user or the group of this process is not mapped in its user namespace.",
)
CHROOT = Finding(
    "inside-chroot",
    "the kernel refuses new user namespaces inside a chroot",
    "enter the directory by pivot_root or as a container instead of chroot",
    "The kernel refuses new user namespaces inside a chroot.",
)
SETFCAP = Finding(
    "missing-capability",
    "mapping uid 0 needs CAP_SETFCAP since Linux 5.12",
    f"keep CAP_SETFCAP in this process's capabilities, or run as another uid than 0; {OR_FILTER}",
    "Root cannot map itself into a new user namespace without the right to set file capabilities.",
)
KERNEL = Finding(
    "kernel-unsupported",
    "this kernel, or the emulator that stands in for it, has no user and network namespaces",
    "use a kernel with CONFIG_USER_NS and CONFIG_NET_NS",
    "This kernel has no user and network namespaces.",
)
WSL1 = Finding(
    "kernel-unsupported",
    "WSL 1 has no namespaces",
    "use WSL 2: wsl --set-version DISTRO 2",
    "The first version of WSL has no namespaces.",
)
POWERLESS = Finding(
    "refused",
    "this system gives no power over a new namespace's loopback device",
    "do without loopback=True; nothing else needs that power",
    "This system gives no power over the loopback device of a new namespace.",
)
LAYER_REFUSED = {
    "seccomp": Finding(
        "seccomp-missing",
        "this kernel, or a sandbox around this process, refuses new seccomp filters",
        "allow seccomp(2) in that sandbox, or use a kernel with CONFIG_SECCOMP_FILTER",
        "This kernel, or a sandbox around this process, refuses new system call filters.",
    ),
    "landlock": Finding(
        "landlock-missing",
        "this kernel, or a sandbox around this process, refuses new Landlock domains",
        "allow the landlock_* system calls in that sandbox; Landlock nests at most 16 deep",
        "This kernel, or a sandbox around this process, refuses new Landlock domains.",
    ),
}
DIED = Finding(
    "refused",
    "the process at the other end was killed, or may not write, before it could report",
    "try again; look for a sandbox around this process that refuses write(2), or for what kills "
    "processes here: the kernel log names the out-of-memory killer",
    "The process that was to be isolated ended before it could report.",
)
STALE = Finding(
    "refused",
    "the kept namespace's descriptors were closed or replaced while a child was being started",
    "look for code in this process that closes descriptors which are not its own",
    "The namespace's handles were closed or replaced while a child was being started.",
)
UNEXPLAINED = Finding(
    "refused",
    "nothing that can be seen from here explains it; a security module, or a chroot whose root "
    "is a mount point, would",
    "ask whoever runs this system which policy refuses user namespaces",
    "This system refuses new user namespaces and does not say why.",
)
# What the wrapper's stage found out about where it had been put.
DISPROVED = {
    errno.EEXIST: Finding(
        "refused",
        "the wrapper program left the child in a namespace that is its caller's, or that "
        "another child is in",
        "unset NETLESS_WRAPPER, or let it name the unshare of util-linux",
        "The wrapper program left the child in a namespace that others are in.",
    ),
    errno.ENOTEMPTY: Finding(
        "refused",
        "the wrapper program put the child into a network namespace that is not an empty one",
        "unset NETLESS_WRAPPER, or let it name the unshare of util-linux",
        "The wrapper program put the child into a network namespace that is not empty.",
    ),
}
# What a step asked for, for the reader of an error that has no better explanation.
PURPOSES = {
    "channel": "a socket pair to the new process",
    "clone": "a new process",
    "unshare": "a new user and network namespace",
    "proc": "this process's own entry in /proc",
    "setgroups": "writing /proc/PID/setgroups of the new namespace",
    "uid-map": "writing /proc/PID/uid_map of the new namespace",
    "gid-map": "writing /proc/PID/gid_map of the new namespace",
    "open-namespace": "the new namespaces' handles in /proc/PID/ns",
    "setns-user": "entering the kept user namespace",
    "setns-net": "entering the kept network namespace",
    "unshare-net": "a network namespace for this child alone",
    "verify-net": "the proof that the child has left its parent's network",
    "verify-user": "the proof that the child has left its parent's user namespace",
    "loopback": "raising the loopback device of the new namespace",
    "no-new-privs": "prctl(PR_SET_NO_NEW_PRIVS)",
    "bounding-set": "dropping capabilities for good",
    "ambient-set": "dropping the capabilities that raised the loopback device",
    "capabilities": "dropping the capabilities that execve would take",
}
HINT = "run `netless doctor` for what this system allows"


NO_LANDLOCK = Finding(
    "landlock-missing",
    "without a namespace, only Landlock keeps a child from the memory of other processes",
    "use Linux 6.7 or newer with Landlock enabled (lsm=landlock,...), or allow user namespaces",
    "Isolation without a namespace needs Landlock, which is not to be had here.",
)
ROOT = Finding(
    "privileged-caller",
    "no filter holds back a caller with the capabilities of root",
    "drop the capabilities, run as another user, or use the namespace mechanism",
    "Isolation without a namespace cannot hold back a process with the powers of root.",
)
NO_SECCOMP = Finding(
    "seccomp-missing",
    "only a seccomp filter can give what was asked for",
    "use a kernel with CONFIG_SECCOMP_FILTER on a machine that netless has a filter for, or ask "
    "for less: the namespace mechanism with unix_sockets=True",
    "What was asked for needs a system call filter, which is not to be had here.",
)
ALREADY_SANDBOXED = Finding(
    "already-sandboxed",
    "a process that is in a macOS sandbox cannot enter another one",
    "start this outside of that sandbox; whether it allows the network is not known from here",
    "A process in a macOS sandbox cannot enter another one.",
)
SANDBOX_HANGS = Finding(
    "sandbox-timeout",
    "the child did not isolate itself in time, probably for a lock that a thread held at the fork",
    "start children before threads, or from a process without threads",
    "The child did not isolate itself in time.",
)
NO_EXTENSION = Finding(
    "extension-missing",
    "only the native extension can isolate a process that does not execute a program",
    "install netless from a wheel, or with a C compiler at hand",
    "What was asked for needs the native part of netless, which is not installed.",
)
UNKNOWN_MULTIPROCESSING = Finding(
    "python-unsupported",
    "this Python's multiprocessing starts processes in a way that netless does not know",
    "use a newer netless, or netless.Popen",
    "This version of Python starts processes in a way that netless does not know.",
)
NOT_HERE = Finding(
    "mechanism-unavailable",
    "the mechanism that was asked for does not exist on this system",
    'ask for mechanism="auto"',
    "The mechanism that was asked for does not exist here.",
)
NO_HOOK = Finding(
    "mechanism-unavailable",
    "the native extension cannot fork PyPy, for preexec_fn or multiprocessing's fork",
    'leave preexec_fn out or ask for mechanism="wrapper"; use the start method "spawn"',
    "The native part of netless cannot fork this Python interpreter.",
)


def unsupported_platform() -> NetworkIsolationUnavailable:
    """The error of a platform that has no mechanism at all."""
    return NetworkIsolationUnavailable(
        "unsupported-platform",
        "use Linux or macOS; on Windows that is WSL 2",
        meaning=f"there is no mechanism for {sys.platform!r}",
        summary="There is no way to isolate processes on this operating system.",
    )


def has_threads(count: int) -> NetworkIsolationUnavailable:
    """The error of a process that can no longer be isolated as a whole."""
    return NetworkIsolationUnavailable(
        "process-has-threads",
        "call netless.isolate() before anything starts a thread, at the top of the program; "
        "some libraries start threads when they are imported",
        meaning=f"this process has {count} threads, and only one of them could be isolated",
        summary="This process has threads already, and only one of them could be isolated.",
    )


def unavailable(
    finding: Finding, *, step: str | None = None, errno: int | None = None
) -> NetworkIsolationUnavailable:
    """The error for a finding; without a step where it needed no launch."""
    return NetworkIsolationUnavailable(
        finding.cause,
        finding.hint,
        step=step,
        errno=errno,
        meaning=finding.meaning,
        summary=finding.summary,
    )


def _out_of_space(step: str, try_unshare: Callable[[int], int]) -> Finding:
    limit = sysctl("user.max_user_namespaces")
    if limit == 0:
        return USERNS_SYSCTL
    if sysctl("user.max_net_namespaces") == 0 or step == "unshare-net":
        return NETNS_LIMIT
    if try_unshare(CLONE_NEWUSER) == 0:
        return NETNS_LIMIT
    # A new user namespace begins with the highest limit there is: not this one, then.
    return NESTED if is_nested() and limit == MOST_NAMESPACES else USERNS_SYSCTL


def _is_unmapped() -> bool:
    return not (has_own_id_mapped("uid", os.geteuid()) and has_own_id_mapped("gid", os.getegid()))


def _making_refused(error: int) -> Finding:
    if _is_unmapped():
        return UNMAPPED
    if error == errno.EACCES:  # how security modules say no
        if is_apparmor_restricted():
            return APPARMOR
        if is_selinux_enforcing():
            return SELINUX
    if sysctl("kernel.unprivileged_userns_clone") == 0 and os.geteuid() != 0:
        return DEBIAN_SYSCTL
    if is_chroot():
        return CHROOT
    if is_filtered():  # before AppArmor: containers see the sysctl of an Ubuntu outside
        return SECCOMP
    is_apparmor = is_apparmor_restricted() or (error == errno.EACCES and is_confined())
    return APPARMOR if is_apparmor else UNEXPLAINED


def _mapping_refused(error: int) -> Finding | None:
    if _is_unmapped():
        return UNMAPPED
    if os.geteuid() == 0 and not has_capability(CAP_SETFCAP):
        return SETFCAP
    if is_apparmor_restricted():
        return APPARMOR
    return UNWRITABLE_PROC if error == errno.EACCES else None


def _not_permitted(step: str, error: int) -> Finding | None:
    if step in MAKING:
        return _making_refused(error)
    if step in MAPPING:
        return _mapping_refused(error)
    if step == "loopback":
        return APPARMOR if is_apparmor_restricted() else POWERLESS
    return None


def _not_there(step: str, error: int) -> Finding:
    has_proc = error == errno.ENOENT and read("/proc/self/status") is not None
    return KERNEL if has_proc and step in ("verify-net", "open-namespace") else NO_PROC


def _not_known(error: int) -> Finding:
    if is_wsl1():
        return WSL1
    return SECCOMP if error == errno.ENOSYS and is_filtered() else KERNEL


def _find(step: str, error: int, try_unshare: Callable[[int], int]) -> Finding | None:
    if step == "stale":
        return STALE
    if step == "sandbox-init":
        return {errno.EPERM: ALREADY_SANDBOXED, errno.ETIMEDOUT: SANDBOX_HANGS}.get(error)
    if step in LAYER_REFUSED and error in LAYER_ERRORS:
        return LAYER_REFUSED[step]
    if error in NOT_THERE and step in PROC_STEPS:
        return _not_there(step, error)
    if error == errno.EROFS and step in MAPPING:
        return READ_ONLY_PROC
    if error in (errno.ENOSPC, errno.EUSERS) and step in MAKING:
        return _out_of_space(step, try_unshare)
    if error in (errno.EPERM, errno.EACCES):
        return _not_permitted(step, error)
    if error in (errno.EINVAL, errno.ENOSYS) and step in MAKING:
        return _not_known(error)
    return DIED if error == errno.EPIPE and step == "channel" else None


def explain(
    step: str, error: int, try_unshare: Callable[[int], int], detail: str = ""
) -> NetworkIsolationUnavailable:
    """The error to raise for a step that failed with this errno.

    ``try_unshare`` tells which half of a refused ``unshare`` was refused;
    ``detail`` is what the system itself said, beyond the errno.
    """
    if step == "sandbox-init" and os.strerror(errno.EPERM) in detail:
        error = errno.EPERM  # sandbox_init promises a text, not an errno
    finding = _find(step, error, try_unshare) or Finding(
        "refused",
        f"the step is {PURPOSES[step]}" if step in PURPOSES else "",
        HINT,
        refused_in_words(error),
    )
    found = unavailable(finding, step=step, errno=error or None)
    found.meaning = ": ".join(filter(None, (finding.meaning, detail)))
    return found


def refused_in_words(error: int | None) -> str:
    """The sentence for a step that nothing else is known about."""
    words = os.strerror(error).lower().replace("-", " ") if error else ""
    if not words.replace(" ", "").isalpha() or any(len(word) > 23 for word in words.split()):
        words = ""
    reason = f", {words}," if words else ""
    return f"The system refused one step of the isolation{reason} and nothing was run."
