"""The only module that touches the extension.

A *plan* is what is the same for every child of one :class:`Isolation`: the way
in, the layers of the seal, the filter.  It is settled once, by running the real
launch sequence in a child that stops where ``execve`` would be, and then holds
for every child: a step that worked then and fails later is an error.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from . import __version__, _diagnosis
from ._errors import InheritedSocketError, NetworkIsolationUnavailable
from ._isolation import Isolation
from ._profile import profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ._signature import Path as StrOrBytesPath

try:
    from . import _spawn
    from ._spawn import ffi, lib
except ImportError:  # no compiler at installation time, or not this platform
    ffi = lib = None


def _check_version(found: str) -> None:
    """No going on with the wrapper: an installation that is torn is to be mended."""
    if found != __version__:
        raise ImportError(
            f"the extension netless._spawn was built as version {found}, but netless is"
            f" {__version__}: two installations are mixed; install netless again"
            " (pip install --force-reinstall netless; in a checkout: pip install -e .)",
            name="netless._spawn",
        )


if lib is not None:
    # An extension from before this function is older still.
    _check_version(
        ffi.string(lib.netless_version()).decode() if hasattr(lib, "netless_version") else "unknown"
    )

# What subprocess would raise as well: not a matter of isolation.
RESOURCE_ERRORS = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE))

# A system call that this system does not allow or have, as opposed to a bad moment.
REFUSALS = frozenset((errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL))

# Milliseconds after which a child that has not isolated itself counts as hanging (macOS).
TIME_LIMIT = 10_000


# Seconds to wait for the kernel to free the network namespaces of children that have ended.
PAUSES = (0.01, 0.03, 0.1)
# How often a launch makes a kept namespace anew.
REMAKES = 2

NO_PIPES = (-1, -1, -1, -1, -1, -1)

# How the extension isolates: "namespace" or "seatbelt"; empty where it cannot.
MECHANISM: str = ffi.string(lib.netless_mechanism()).decode() if lib is not None else ""


def is_available() -> bool:
    """Is the extension there, and has this platform a mechanism?"""
    return MECHANISM != ""


def classify(fd: int, unix_sockets: bool) -> tuple[str, int | None] | None:
    """None for a descriptor that may be inherited, else its kind and a socket's family."""
    family = ffi.new("int *")
    kind = lib.netless_classify(fd, unix_sockets, family)
    if kind == lib.NETLESS_KIND_FINE:
        return None
    return KINDS[kind], family[0] if family[0] >= 0 else None


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    return int(lib.netless_landlock_abi()) if lib is not None else 0


def _names(enum: str, prefix: str) -> dict[int, str]:
    """The C enum's names as tokens: NETLESS_STEP_SETNS_USER is "setns-user"."""
    elements: dict[int, str] = ffi.typeof(f"enum {enum}").elements
    return {
        number: name.removeprefix(prefix).lower().replace("_", "-")
        for number, name in elements.items()
    }


if lib is not None:
    STEPS = _names("netless_step", "NETLESS_STEP_")
    KINDS = _names("netless_kind", "NETLESS_KIND_")
    # A kept namespace that cannot be joined may be one that has become stale.
    JOIN_STEPS = (
        lib.NETLESS_STEP_STALE,
        lib.NETLESS_STEP_SETNS_USER,
        lib.NETLESS_STEP_SETNS_NET,
    )
    PROOF_STEPS = (lib.NETLESS_STEP_VERIFY_NET, lib.NETLESS_STEP_VERIFY_USER)
    REPORT = ffi.typeof("struct netless_report *")
    EMPTY_REPORT = ffi.new(REPORT)
    native_spawn = _spawn.spawn if lib.netless_add_spawn() == 0 else None


class Plan:
    """One settled way to start children. ``c`` is the C plan, ``sealed`` what keeps it alive."""

    __slots__ = (
        "address",
        "c",
        "guarantees",
        "isolation",
        "mechanism",
        "needs_channel",
        "sealed",
    )

    def __init__(
        self,
        isolation: Isolation,
        mechanism: str,
        guarantees: frozenset[str],
        c: Any,
        sealed: Any,
    ) -> None:
        self.isolation = isolation
        self.mechanism = mechanism
        self.guarantees = guarantees
        self.c = c
        self.sealed = sealed
        self.address = int(ffi.cast("uintptr_t", c))  # for the extension's own function
        self.needs_channel = MECHANISM == "seatbelt" or c.way == lib.NETLESS_WAY_MAKE


class _Plans:
    """The sealed namespaces of this process and the plans that were made with them.

    Without a lock: a signal handler may launch while its thread is settling.  Two that
    settle at once both do so, and one of the results is dropped.
    """

    def __init__(self) -> None:
        self.plans: dict[Isolation, Plan] = {}
        self.latest: Plan | None = None  # asked for again by the next child, as a rule
        self.sealed: dict[bool, Any] = {}

    def get(self, isolation: Isolation) -> Plan:
        """The plan for this isolation, settled on first use."""
        plan = self.plans.get(isolation)
        if plan is None:
            plan = self.plans.setdefault(isolation, _settle(isolation, self._settle_namespace))
        self.latest = plan
        return plan

    def forget(self, plan: Plan) -> None:
        """Drop a plan that no longer works, and all that shares its namespace."""
        self.latest = None
        for isolation, other in list(self.plans.items()):
            if other.sealed is plan.sealed:
                self.plans.pop(isolation, None)
        self._drop_namespace(plan.isolation.map_root, plan.sealed)

    def _drop_namespace(self, map_root: bool, sealed: Any) -> None:
        """Close it now and not when nobody refers to it any more: handles are few."""
        if self.sealed.get(map_root) is sealed:
            self.sealed.pop(map_root, None)
            lib.netless_namespace_close(sealed)

    def _sealed_namespace(self, map_root: bool) -> Any:
        """The kept pair of namespaces, made where there is none."""
        sealed = self.sealed.get(map_root)
        if sealed is None:
            sealed = self.sealed.setdefault(map_root, _make_namespace(map_root))
        return sealed

    def clear(self) -> None:
        """Close what is kept: it could not be joined from another namespace."""
        self.latest = None
        self.plans.clear()
        self.sealed.clear()

    def _settle_namespace(self, isolation: Isolation) -> Plan:
        attempts = 0
        while True:
            sealed = self._sealed_namespace(isolation.map_root)
            try:
                return _settle_with(isolation, sealed)
            except _Stale as stale:
                self._drop_namespace(isolation.map_root, sealed)
                if attempts == REMAKES:
                    raise_isolation_failure(stale.report)
            attempts += 1


class _Stale(Exception):
    """The kept namespace is not there any more."""

    def __init__(self, report: Any) -> None:
        super().__init__()
        self.report = report


_cache = _Plans()


def _after_fork_in_child() -> None:
    """The descriptors stay valid; plans are tried anew."""
    _cache.latest = None
    _cache.plans.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _settle(isolation: Isolation, settle_namespace: Callable[[Isolation], Plan]) -> Plan:
    """By the mechanism that was asked for, or the fallback where it is refused."""
    if MECHANISM == "seatbelt":
        return _settle_seatbelt(isolation)
    if isolation.mechanism == "filter":
        return _settle_filter(isolation)
    if isolation.mechanism not in ("auto", "namespace"):
        raise _diagnosis.unavailable(_diagnosis.NOT_HERE)
    try:
        return settle_namespace(isolation)
    except NetworkIsolationUnavailable as refusal:
        if isolation.fallback != "filter":
            raise
        try:
            return _settle_filter(isolation)
        except NetworkIsolationUnavailable as error:
            raise refusal from error


def _make_namespace(map_root: bool) -> Any:
    # Before the call, since a signal handler's exception may come right after it.
    made = ffi.gc(
        ffi.new("struct netless_namespace *", {"user_fd": -1, "net_fd": -1}),
        lib.netless_namespace_close,
    )
    report = ffi.new("struct netless_report *")
    if lib.netless_namespace_make(map_root, made, report) < 0:
        raise_isolation_failure(report)
    return made


def _settle_with(isolation: Isolation, sealed: Any, is_alone: bool = False) -> Plan:
    """Try the ways in, best first. What the probe could not install is not promised."""
    alone = isolation.private or isolation.loopback
    joined = _draft(
        isolation, sealed, lib.NETLESS_WAY_JOIN_PRIVATE if alone else lib.NETLESS_WAY_JOIN
    )
    has_handles = sealed.user_fd >= 0
    if has_handles and not lib.netless_is_fresh(joined):
        raise _Stale(ffi.new(REPORT, {"step": lib.NETLESS_STEP_STALE}))
    report = _probe(joined)
    if has_handles and report.step in (lib.NETLESS_STEP_STALE, *PROOF_STEPS):
        raise _Stale(report)
    is_refused = not has_handles or (report.step in JOIN_STEPS and report.error in REFUSALS)
    # Landlock stops at 16 nested domains: a user namespace for each child keeps them apart then.
    lacks_domain = bool(joined.layers & ~report.layers & lib.NETLESS_LAYER_LANDLOCK)
    if is_refused or (report.step == lib.NETLESS_STEP_NONE and lacks_domain):
        own = _draft(isolation, sealed, lib.NETLESS_WAY_MAKE)
        own_report = _probe(own)
        if is_refused or own_report.step == lib.NETLESS_STEP_NONE:
            joined, report = own, own_report
    if report.step != lib.NETLESS_STEP_NONE:
        raise_isolation_failure(report)
    joined.layers, joined.unproved, joined.optional = report.layers, report.unproved, 0
    return Plan(isolation, "namespace", _guarantees(joined, is_alone), joined, sealed)


def _settle_alone(isolation: Isolation) -> Plan:
    """On a pair of namespaces that nobody else joins, for a process that does not execute."""
    if not is_available():
        raise _diagnosis.unavailable(_diagnosis.NO_EXTENSION)
    return _settle(isolation, _settle_own)


def _settle_own(isolation: Isolation) -> Plan:
    try:
        return _settle_with(isolation, _make_namespace(isolation.map_root), True)
    except _Stale as stale:  # it was made this moment: whatever it is, it is not that
        raise_isolation_failure(stale.report)


def _settle_filter(isolation: Isolation) -> Plan:
    """No namespace: seccomp and Landlock only, and only where that is sound."""
    if lib.netless_has_root_powers():
        raise _diagnosis.unavailable(_diagnosis.ROOT)
    caller = ffi.new("struct netless_namespace *")
    caller.euid, caller.egid = os.geteuid(), os.getegid()
    plan = _draft(isolation, caller, lib.NETLESS_WAY_FILTER)
    report = _probe(plan)
    if report.step != lib.NETLESS_STEP_NONE:
        raise_isolation_failure(report)
    return Plan(isolation, "filter", _guarantees(plan), plan, caller)


def _settle_seatbelt(isolation: Isolation) -> Plan:
    """macOS: one profile for every child, nothing that has to be kept but its text."""
    if isolation.mechanism not in ("auto", "seatbelt"):
        raise _diagnosis.unavailable(_diagnosis.NOT_HERE)
    text = ffi.new("char[]", profile(isolation).encode())
    plan = ffi.new("struct netless_plan *")
    plan.inherit_sockets = isolation.inherit_sockets
    plan.unix_sockets = isolation.unix_sockets
    plan.profile, plan.time_limit = text, TIME_LIMIT
    report = _probe(plan)
    if report.step != lib.NETLESS_STEP_NONE:
        raise_isolation_failure(report)
    # Not "no-way-back": a child can ask launchd or LaunchServices to start a program outside.
    guarantees = {"ip"}
    if not isolation.inherit_sockets:
        guarantees.add("inherited-sockets")
    if not isolation.unix_sockets:
        guarantees.add("unix-path")
    return Plan(isolation, "seatbelt", frozenset(guarantees), plan, text)


def _draft(isolation: Isolation, sealed: Any, way: int) -> Any:
    plan = ffi.new("struct netless_plan *")
    plan.way = way
    plan.loopback = isolation.loopback
    plan.map_root = isolation.map_root
    plan.inherit_sockets = isolation.inherit_sockets
    plan.unix_sockets = isolation.unix_sockets
    plan.sealed = sealed[0]
    lib.netless_plan_seal(plan)
    missing = plan.required & ~plan.layers
    if missing & lib.NETLESS_LAYER_LANDLOCK:
        raise _diagnosis.unavailable(_diagnosis.NO_LANDLOCK)
    if missing:
        raise _diagnosis.unavailable(_diagnosis.NO_SECCOMP)
    return plan


def _probe(plan: Any) -> Any:
    """Run the launch sequence in a child that executes nothing."""
    request = Request(env=())
    request.c.probe = 1
    lib.netless_spawn(plan, request.c)
    return request.take_report()


def _guarantees(plan: Any, is_alone: bool = False) -> frozenset[str]:
    """What holds, from the layers that the probe really installed."""
    has_namespace = plan.way != lib.NETLESS_WAY_FILTER
    has_filter = bool(plan.layers & lib.NETLESS_LAYER_SECCOMP)
    has_domain = bool(plan.layers & lib.NETLESS_LAYER_LANDLOCK)
    is_proved = not plan.unproved & lib.NETLESS_LAYER_LANDLOCK
    has_scope = has_domain and is_proved and bool(plan.landlock_scoped)
    shuts_paths = (has_domain and is_proved) if plan.paths_by_landlock else has_filter
    # Real root, and who is uid 0 inside, writes the settings of a shared namespace
    # (/proc/sys/net): a sibling's, too.
    is_shared = plan.way == lib.NETLESS_WAY_JOIN and not is_alone
    writes_settings = is_shared and (plan.sealed.euid == 0 or plan.map_root)
    return frozenset(
        name
        for name, holds in {
            "ip": True,
            # Neither a daemon nor the kernel's own helper looks up what the child wants.
            "names": not plan.unix_sockets and shuts_paths and has_filter,
            "no-way-back": True,
            "inherited-sockets": not plan.inherit_sockets,
            "vm-sockets": has_filter,
            "key-upcalls": has_filter,
            "tty-injection": has_filter,
            "unix-abstract": has_namespace or has_scope,
            "unix-path": not plan.unix_sockets and shuts_paths,
            # A user namespace of its own shuts siblings out as well; a private network
            # namespace alone leaves them the memory of each other.
            "siblings": ((has_scope and has_filter) or plan.way == lib.NETLESS_WAY_MAKE)
            and not writes_settings,
        }.items()
        if holds
    )


def plan_for(isolation: Isolation) -> Plan:
    """The settled plan for this isolation.

    Raises:
        NetworkIsolationUnavailable: this system does not give it.
        OSError: out of processes, descriptors or memory.
    """
    return _cache.get(isolation)


def current_plan(isolation: Isolation) -> Plan:
    """As :func:`plan_for`, settled anew if the kept namespace has become stale."""
    plan = plan_for(isolation)
    if not lib.netless_is_fresh(plan.c):
        _cache.forget(plan)
        plan = plan_for(isolation)
    return plan


SEALING = ("no-new-privs", "bounding-set", "landlock", "seccomp")


def launch_layers(isolation: Isolation) -> list[tuple[str, str]]:
    """Each layer of the seal, "installed" or "left out" in the children of this isolation."""
    layers = plan_for(isolation).c.layers
    return [(name, "installed" if layers & _layer(name) else "left out") for name in SEALING]


def _layer(name: str) -> int:
    return int(getattr(lib, f"NETLESS_LAYER_{name.upper().replace('-', '_')}"))


def raise_isolation_failure(report: Any) -> NoReturn:
    """Raise what a failure before the program's own set-up means."""
    if report.step == lib.NETLESS_STEP_DESCRIPTORS:
        is_known = report.kind == lib.NETLESS_KIND_SOCKET and report.family >= 0
        raise InheritedSocketError(
            report.fd, report.family if is_known else None, KINDS[report.kind]
        )
    if report.error in RESOURCE_ERRORS:
        raise OSError(report.error, os.strerror(report.error))
    if report.step == lib.NETLESS_STEP_MEMORY:
        raise MemoryError
    detail = ffi.string(report.detail).decode(errors="replace")
    raise _diagnosis.explain(step_name(report), report.error, lib.netless_try_unshare, detail)


def is_ordinary(report: Any) -> bool:
    """Did the launch fail at a step that subprocess has as well?"""
    return bool(report.step >= lib.NETLESS_STEP_STDIO)


def step_name(report: Any) -> str:
    """The failed step's name, e.g. ``"setns-user"``."""
    return STEPS[report.step]


class Request:
    """One launch: a C request and the Python objects that its pointers point into.

    Takes what :func:`spawn` takes.
    """

    __slots__ = ("_kept", "c")

    def __init__(
        self,
        args: Sequence[StrOrBytesPath] = (),
        candidates: Sequence[bytes] = (),
        env: Sequence[bytes] | None = None,
        cwd: StrOrBytesPath | None = None,
        pipes: tuple[int, int, int, int, int, int] = NO_PIPES,
        close_fds: bool = False,
        restore_signals: bool = False,
        new_session: bool = False,
        process_group: int = -1,
        umask: int = -1,
    ) -> None:
        self._kept: list[Any] = []
        c = self.c = ffi.new("struct netless_request *")
        c.argv, c.argc = self._strings(args), len(args)
        c.candidates, c.candidate_count = self._strings(candidates), len(candidates)
        if env is not None:
            c.env, c.env_count, c.has_env = self._strings(env), len(env), 1
        if cwd is not None:
            c.cwd = self._strings([cwd])
        c.stdio, c.parent_ends = (pipes[0], pipes[3], pipes[5]), (pipes[1], pipes[2], pipes[4])
        c.close_fds, c.restore_signals = bool(close_fds), bool(restore_signals)
        c.new_session, c.process_group, c.umask = bool(new_session), process_group, umask

    def _strings(self, items: Sequence[StrOrBytesPath]) -> Any:
        """NUL-terminated strings in one block."""
        block = b"\0".join([*map(os.fsencode, items), b""])
        if block.count(0) != len(items):
            raise ValueError("embedded null byte")
        found = ffi.from_buffer(block)
        self._kept.append(found)
        return found

    def take_report(self) -> Any:
        """What came of the launch, so that there can be another one."""
        report = ffi.new("struct netless_report *", self.c.report)
        self.c.report = EMPTY_REPORT[0]
        return report

    def set_pass_fds(self, pass_fds: Iterable[int]) -> None:
        """Descriptors that the child keeps under their numbers.

        Raises:
            ValueError: one of them is none.
        """
        if not pass_fds:
            return
        descriptors = sorted(set(map(int, pass_fds)))
        if descriptors[0] < 0 or descriptors[-1] > 0x7FFFFFFF:
            raise ValueError("bad value(s) in fds_to_keep")
        keep = ffi.new("int[]", descriptors)
        self.c.keep, self.c.keep_count = keep, len(descriptors)
        self._kept.append(keep)

    def set_ids(self, uid: int | None, gid: int | None, groups: Sequence[int] | None) -> None:
        """The user, group and supplementary groups of the child; None leaves them alone."""
        if uid is not None:
            self.c.uid, self.c.has_uid = uid, 1
        if gid is not None:
            self.c.gid, self.c.has_gid = gid, 1
        if groups is None:
            return
        try:
            numbers = ffi.new("unsigned int[]", list(groups))
        except OverflowError:
            raise ValueError("invalid group id") from None
        self._kept.append(numbers)
        self.c.groups, self.c.group_count, self.c.has_groups = numbers, len(groups), 1


def spawn(isolation: Isolation, launch: tuple[Any, ...]) -> tuple[Any, Plan]:
    """Start an isolated child: its pid, or the report of the step that failed.

    Args:
        isolation: what it is cut off from.
        launch: its arguments, the paths to try, its environment as ``KEY=value`` or
            None, its directory or None; the pipes as :mod:`subprocess` makes them;
            close_fds, restore_signals, new_session, process_group, umask.
    """
    plan = _cache.latest
    if plan is None or plan.isolation is not isolation:
        plan = plan_for(isolation)
    if plan.needs_channel or native_spawn is None:  # or another interpreter than CPython
        return start(isolation, Request(*launch))
    result = native_spawn(plan.address, launch)
    if type(result) is int:
        return result, plan

    def spawn_once(plan: Plan) -> Any:
        result = native_spawn(plan.address, launch)
        return result if type(result) is int else ffi.from_buffer(REPORT, result)

    return _again(plan, ffi.from_buffer(REPORT, result), spawn_once)


def start(isolation: Isolation, request: Request) -> tuple[Any, Plan]:
    """As :func:`spawn`, for what that does not take."""

    def start_once(plan: Plan) -> Any:
        pid = lib.netless_popen(plan.c, request.c)
        return pid if pid > 0 else request.take_report()

    plan = plan_for(isolation)
    return _again(plan, start_once(plan), start_once)


def start_with(
    isolation: Isolation, request: Request, preexec_fn: Callable[[], object]
) -> tuple[Any, Plan]:
    """As :func:`start`, with ``preexec_fn`` called in the isolated child. CPython only."""
    if sys.implementation.name == "pypy":
        raise _diagnosis.unavailable(_diagnosis.NO_HOOK)

    def fork_once(plan: Plan) -> Any:
        pid, settled = _fork(plan, request, preexec_fn)
        return pid if settled else request.take_report()

    plan = plan_for(isolation)
    return _again(plan, fork_once(plan), fork_once)


def _fork(
    plan: Plan, request: Request, preexec_fn: Callable[[], object] | None = None
) -> tuple[int, bool]:
    """The pid and whether all went well; 0 in a child that stays.

    An exception of a signal handler may come at any point: what then is left of the launch
    ends with its handle, a child included.
    """
    handle = ffi.gc(ffi.new("struct netless_handle *"), lib.netless_fork_discard)
    try:
        if lib.netless_fork_begin(handle, plan.c, request.c) < 0:
            return -1, False
        pid = int(lib.netless_fork(handle))
        if pid == 0 and preexec_fn is not None:
            _run_in_child(handle, preexec_fn)
        if pid == 0:
            return 0, True
        while (result := lib.netless_fork_wait(handle)) > 0:
            pass  # a signal came; its handler has run by now
        return pid, bool(result == 0)
    finally:
        lib.netless_fork_discard(handle)


def _again(plan: Plan, result: Any, once: Callable[[Plan], Any]) -> tuple[Any, Plan]:
    """Once more where there is hope.

    A kept namespace that is not what it was is made anew, and again if another thread's
    clean-up came in between; a network namespace for the child alone may have to wait
    until the kernel is done with those of children that have ended.
    """
    for pause in PAUSES:
        if not _is_at_limit(result):
            break
        time.sleep(pause)
        result = once(plan)
    for _ in range(REMAKES):
        if not (_is_stale(result) or _is_at_limit(result)):
            break
        _cache.forget(plan)
        plan = plan_for(plan.isolation)
        result = once(plan)
    return result, plan


def _is_stale(result: Any) -> bool:
    return type(result) is not int and result.step in (*JOIN_STEPS, *PROOF_STEPS)


def _is_at_limit(result: Any) -> bool:
    """Refused by a limit of the kept user namespace, which a child may have lowered."""
    if type(result) is int or result.step != lib.NETLESS_STEP_UNSHARE_NET:
        return False
    return bool(result.error == errno.ENOSPC)


def _run_in_child(handle: Any, preexec_fn: Callable[[], object]) -> NoReturn:
    try:
        preexec_fn()
        lib.netless_fork_finish(handle)
    except BaseException:
        lib.netless_fork_fail(handle, 0)
    finally:
        os._exit(255)


def isolate(isolation: Isolation) -> Plan:
    """Isolate this process, which has one thread and has forgotten its namespaces."""
    plan = _settle_alone(isolation)
    report = ffi.new("struct netless_report *")
    if lib.netless_isolate(plan.c, report) < 0:
        raise_isolation_failure(report)
    return plan


def forget() -> None:
    """Close what is kept of this process's namespaces; the next child makes it anew."""
    _cache.clear()


def fork(isolation: Isolation) -> int:
    """As :func:`os.fork`, with a child that is isolated before anything of Python's runs in it.

    What the parent has open and leads to a network is shut in the child: reading and
    writing there fails.
    """
    if sys.implementation.name == "pypy":
        raise _diagnosis.unavailable(_diagnosis.NO_HOOK)
    plan = _settle_alone(isolation)
    request = Request(close_fds=True)
    request.c.stays = True
    sys.audit("os.fork")
    pid, settled = _fork(plan, request)
    if pid == 0:
        _cache.clear()
    elif not settled:
        raise_isolation_failure(request.c.report)
    return pid


def execute(isolation: Isolation, request: Request) -> Any:
    """Isolate this process and execute; comes back with the report on failure only."""
    plan = plan_for(isolation)
    lib.netless_exec(plan.c, request.c)
    return request.c.report
