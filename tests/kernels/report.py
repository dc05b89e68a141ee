"""What each result of a guest must be, and the table of them all."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from types import SimpleNamespace

from netless import _native

USERS = ("root", "user")
NETWORK = ("tcp4", "tcp6", "udp4", "udp6")
OUTSIDE = ("ptrace", "writev", "mem", "getfd", "setns", "pidfd-setns")
PATHS = ("unix", "dgram-pair", "raw-pair", "dgram-pair-high")
VM_SOCKETS = (
    *("vsock", "vsock-high", "families", "int80-vsock", "io-uring", "vsock-32"),
    "socketcall-vsock-32",
)
SIBLINGS = (
    "usersock",
    *(f"sibling-{way}" for way in ("abstract", "ptrace", "writev", "mem", "getfd")),
)
# What is tried, by the guarantee that it would break. The first three have their control outside
# any isolation; the others in a namespace without the seal, or outside where there is none.
ATTEMPTS = {
    "ip": NETWORK,
    "no-way-back": OUTSIDE,
    "unix-abstract": ("unix-abstract",),
    "unix-path": PATHS,
    "vm-sockets": VM_SOCKETS,
    "key-upcalls": ("keys", "upcall"),
    "tty-injection": ("tiocsti", "tiocsti-high", "tioclinux"),
    "siblings": SIBLINGS,
}
CONTROLLED_OUTSIDE = ("ip", "no-way-back", "unix-abstract")
ROOTS_ONLY = ("setns", "pidfd-setns")  # nobody else enters the namespaces of others anyway
ORDINARY = ("runs", "closes-descriptors", "dumpable")

NAMESPACE_KINDS = ("shared", "private", "loopback", "make", "make-loopback", "map-root", "no-unix")
FILTER_KINDS = ("filter", "filter-no-unix")
# The layers are the same whatever the way in, so not everything is tried after each.
WITH_EVERYTHING = ("shared", "make", "no-unix", *FILTER_KINDS)
WITH_SIBLINGS = ("shared", "make", "map-root")

REFUSED_DESCRIPTORS = (
    *("tcp", "udp", "netlink", "vsock", "tun", "netns", "userns", "pidfd", "procdir", "memory"),
    *("io_uring", "userfaultfd"),
)
FROM_MODULES = ("vsock", "tun")
FINE_DESCRIPTORS = (
    *("eventfd", "timerfd", "epoll", "signalfd", "inotify", "memfd", "null", "file", "pipe"),
    *("stream-pair", "seqpacket-pair", "datagram-pair"),
)

# The first Linux with each of these.
IO_URING_SOCKETS = (5, 19)
FILTER_MECHANISM = (6, 7)
LANDLOCK_SCOPES = (6, 12)
RESOLVE_UNIX = (7, 1)
APPARMOR_USERNS = (6, 7)

SUITES = ("denial", "namespace", "environments", "conformance")
ALWAYS = {
    *("ip", "inherited-sockets", "vm-sockets", "unix-abstract", "key-upcalls", "tty-injection"),
    "no-way-back",
}


@dataclass
class Verdict:
    """One kernel: the table's cells by row and user, and each promise that is broken."""

    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def note(self, row: str, user: str, value: str, broken: list[str]) -> None:
        self.cells.setdefault(row, {})[user] = "BROKEN" if broken else value
        self.broken += broken


class Results:
    """A guest's result lines (functions.sh says what they mean), and what they must be."""

    def __init__(self, series: str, lines: list[str]) -> None:
        self.version = tuple(map(int, series.split(".")))
        self.facts: dict[str, str] = {}
        self.plans: dict[tuple[str, str], list[str]] = {}
        self.ran: dict[tuple[str, str, str], str] = {}
        self.arrivals = ["no line", "of it"]
        self.odd: list[str] = []
        for line in lines:
            kind, *words = line.split()
            if kind == "fact" and len(words) == 2:
                self.facts[words[0]] = words[1]
            elif kind == "plan" and len(words) > 2:
                self.plans[words[0], words[1]] = words[2:]
            elif kind == "ran" and len(words) == 4:
                self.ran[words[0], words[1], words[2]] = words[3]
            elif kind == "arrivals" and len(words) == 2:
                self.arrivals = words
            else:
                self.odd.append(f"an odd line: {line}")

    def must(self, user: str, kind: str, name: str, expected: str) -> list[str]:
        """What is wrong with that result: nothing, or one line."""
        found = self.ran.get((user, kind, name), "not tried")
        if found == expected:
            return []
        return [f"{user}, {kind}: {name} is {worded(found)}, not {worded(expected)}"]

    def guarantees(self, user: str, kind: str) -> frozenset[str] | None:
        """What netless would claim for this plan; None where there is none."""
        words = self.plans.get((user, kind), ["missing"])
        if len(words) != 5:
            return None
        way, layers, scoped, handles, unix_sockets = map(int, words)
        return _native._guarantees(
            SimpleNamespace(
                way=way,
                layers=layers,
                landlock_scoped=scoped,
                landlock_fs=handles,
                unix_sockets=unix_sockets,
                inherit_sockets=0,
            )
        )

    def expected(self, kind: str) -> set[str]:
        """What the README promises on this kernel."""
        promised = set(ALWAYS)
        if kind.startswith("make") or self.version >= LANDLOCK_SCOPES:
            promised.add("siblings")
        if kind in FILTER_KINDS and self.version < LANDLOCK_SCOPES:
            promised.discard("unix-abstract")
        if kind.endswith("no-unix"):
            promised |= {"unix-path", "names"}
        return promised

    def has_plan(self, user: str, kind: str) -> bool:
        """Must this kind work for that user here?"""
        if kind in FILTER_KINDS:
            return user == "user" and self.version >= FILTER_MECHANISM
        return True

    def has_modules(self) -> bool:
        """Are AF_VSOCK and tun devices there? Backports drop the modules of older kernels."""
        return self.facts.get("modules", "0") != "0"

    def is_possible(self, user: str, name: str) -> bool:
        """Does the control of that attempt work on this kernel?"""
        if name in ROOTS_ONLY:
            return user == "root"
        return name != "io-uring" or self.version >= IO_URING_SOCKETS


def worded(outcome: str) -> str:
    """Step and errno by name."""
    if not outcome.startswith("failed:"):
        return outcome
    step, number = map(int, outcome.split(":")[1:])
    return f"failed:{_native.STEPS.get(step, step)}:{errno.errorcode.get(number, number)}"


def failed(step: str, name: str) -> str:
    """The outcome of a launch that failed like that."""
    numbers = {text: number for number, text in _native.STEPS.items()}
    return f"failed:{numbers[step]}:{getattr(errno, name)}"


def judge(series: str, lines: list[str]) -> Verdict:
    """Every promise against what was tried."""
    results, verdict = Results(series, lines), Verdict()
    for user in USERS:
        verdict.note("Landlock ABI", user, results.facts.get("landlock", "?"), [])
        judge_guarantees(results, user, verdict)
        judge_the_rest(results, user, verdict)
    seen, expected = results.arrivals
    if seen != expected:
        verdict.broken.append(f"{seen} arrivals at the listener, not the controls' {expected}")
    verdict.broken += results.odd
    return verdict


def judge_guarantees(results: Results, user: str, verdict: Verdict) -> None:
    """Claimed is held, with a control that is open; not claimed is shown as it is."""
    kinds = [kind for kind in NAMESPACE_KINDS + FILTER_KINDS if results.has_plan(user, kind)]
    claims = {kind: results.guarantees(user, kind) for kind in kinds}
    for kind in kinds:
        if claims[kind] != results.expected(kind):
            found = ", ".join(sorted(claims[kind] or {"nothing"}))
            verdict.broken.append(f"{user}, {kind}: promises {found}")
    for guarantee, names in ATTEMPTS.items():
        broken: list[str] = []
        for kind in kinds:
            for name in names:
                if is_tried(kind, name):
                    broken += judge_attempt(results, user, kind, name, claims[kind] or ())
        shown = "no-unix" if guarantee == "unix-path" else "shared"
        value = "held" if guarantee in (claims[shown] or ()) else "open"
        if guarantee == "vm-sockets" and not results.has_modules():
            value += ", no control"
        verdict.note(f"`{guarantee}`", user, value, broken)
        if guarantee == "siblings":
            verdict.note("`siblings`, a namespace for each child", user, "held", broken)
    # Nothing of its own is tried: it is these two together.
    parts = {verdict.cells[f"`{guarantee}`"][user] for guarantee in ("unix-path", "key-upcalls")}
    is_claimed = "names" in (claims["no-unix"] or ()) and parts == {"held"}
    verdict.note("`names`, with `unix_sockets=False`", user, "held" if is_claimed else "open", [])


def is_tried(kind: str, name: str) -> bool:
    """Does checks.sh try it in a child of this kind?"""
    if name in SIBLINGS:
        return kind in WITH_SIBLINGS
    return name in NETWORK or kind in WITH_EVERYTHING


def judge_attempt(results: Results, user: str, kind: str, name: str, claims) -> list[str]:
    guarantee = next(key for key, names in ATTEMPTS.items() if name in names)
    is_outside = guarantee in CONTROLLED_OUTSIDE or kind in FILTER_KINDS
    control = "none" if is_outside else "unsealed"
    broken: list[str] = []
    if name not in VM_SOCKETS or results.has_modules():
        possible = results.is_possible(user, name)
        broken = results.must(user, control, name, "open" if possible else "shut")
    if guarantee in claims:
        return broken + results.must(user, kind, name, "shut")
    if results.ran.get((user, kind, name)) in ("open", "shut"):
        return broken
    return broken + results.must(user, kind, name, "open or shut")


def judge_the_rest(results: Results, user: str, verdict: Verdict) -> None:
    must = results.must
    kinds = [kind for kind in NAMESPACE_KINDS + FILTER_KINDS if results.has_plan(user, kind)]

    found: list[str] = []
    for kind in kinds:
        for name in (*ORDINARY, *(("dumpable-with-ids",) if kind != "map-root" else ())):
            found += must(user, kind, name, "open")
    for kind in ("loopback", "make-loopback"):
        found += must(user, kind, "own-loopback", "open")
    verdict.note("ordinary launches; the parent stays dumpable", user, "ok", found)

    found = must(user, "unsealed-root", "packet", "open")
    for kind in WITH_SIBLINGS:
        found += must(user, kind, "packet", "shut")
    verdict.note("no power over the namespace", user, "held", found)

    by_landlock = results.version >= RESOLVE_UNIX
    found = must(user, "no-unix", "own-unix", "open" if by_landlock else "shut")
    for kind in NAMESPACE_KINDS[:-1]:
        found += must(user, kind, "own-unix", "open")
    shown = "work" if by_landlock else "refused"
    verdict.note("own AF_UNIX servers with `unix_sockets=False`", user, shown, found)

    verdict.note("`inherited-sockets`", user, "held", judge_descriptors(results, user))

    found = must(user, "shared", "strike-plain", "open")
    found += must(user, "unsealed", "strike-emptied", "open")
    found += must(user, "shared", "strike", "shut")
    if user != "root":
        found += must(user, "unsealed", "strike", "shut")
    verdict.note("a sibling that strikes before `execve`", user, "held", found)

    verdict.note("fails closed", user, "held", judge_refusals(results, user))
    has_filter = results.has_plan(user, "filter")
    found = []
    for kind in FILTER_KINDS:
        if not has_filter and results.plans.get((user, kind)) != [failed("unsupported", "EPERM")]:
            found = [f"{user}, {kind}: not refused"]
    verdict.note("mechanism `filter`", user, "held" if has_filter else "refused", found)


def judge_descriptors(results: Results, user: str) -> list[str]:
    refused = failed("descriptors", "EPERM")
    found = results.must(user, "none", "fd-through", "open")
    names = [
        name for name in REFUSED_DESCRIPTORS if results.has_modules() or name not in FROM_MODULES
    ]
    for name in names + ["packet"] * (user == "root"):
        found += results.must(user, "shared", f"fd-{name}", refused)
    for name in FINE_DESCRIPTORS:
        found += results.must(user, "shared", f"fd-{name}", "open")
    found += results.must(user, "no-unix", "fd-datagram-pair", refused)
    return found + results.must(user, "no-unix", "fd-stream-pair", "open")


def judge_refusals(results: Results, user: str) -> list[str]:
    """Limits that are used up, and a kernel that says yes and does nothing."""
    found = []
    for limit in ("max_user_namespaces-0", "max_net_namespaces-0"):
        for kind in ("shared", "private", "loopback", "make", "map-root"):
            found += results.must(user, kind, limit, failed("unshare", "ENOSPC"))
    for kind in ("private", "loopback"):
        found += results.must(user, kind, "max_net_namespaces-1", failed("unshare-net", "ENOSPC"))
    for kind in NAMESPACE_KINDS[:-1]:
        found += results.must(user, kind, "lie-launch", failed("verify-net", "EEXIST"))
    for kind in ("shared", "private", "map-root"):
        found += results.must(user, kind, "lie-make", failed("verify-net", "EEXIST"))
    return found


def judge_ubuntu(series: str, lines: list[str]) -> Verdict:
    """An unprivileged user under Ubuntu's restriction."""
    results, verdict = Results(series, lines), Verdict()
    must, found = results.must, []
    for way in ("tcp4", "tcp6"):
        found += must("user", "none", way, "open")
        for kind in NAMESPACE_KINDS[:-1] + ("no-unix",):
            no_power = kind == "make-loopback"  # nobody but its powerless maker is inside
            outcome = failed("loopback", "EPERM") if no_power else "shut"
            found += must("user", kind, way, outcome)
            found += must("user", kind, "runs", outcome if no_power else "open")
    found += must("user", "loopback", "own-loopback", "open")
    if results.guarantees("user", "shared") != results.expected("shared"):
        found.append("user, shared: not the same guarantees")
    verdict.note("under Ubuntu's restriction", "user", "held", found)

    found = []
    for kind in ("shared", "private", "loopback", "make"):
        found += must("user", kind, "detached-runs", "open") + must(
            "user", kind, "detached", "shut"
        )
    verdict.note("caller's profile without `attach_disconnected`", "user", "held", found)

    mediates = results.version >= APPARMOR_USERNS
    found = []
    for kind in ("shared", "private", "loopback", "make"):
        expected = failed("unshare", "EACCES") if mediates else "open"
        found += must("user", kind, "without-userns", expected)
    shown = "fails closed" if mediates else "not enforced"
    verdict.note("caller's profile without `userns,`", "user", shown, found)
    if results.arrivals != ["4", "4"]:
        verdict.broken.append(f"{results.arrivals[0]} arrivals at the listener, not 4")
    verdict.broken += results.odd
    return verdict


INSIDE = ("forkserver", "manager", "asyncio-server")


def judge_python(series: str, lines: list[str]) -> Verdict:
    """The project's own tests, and what works inside ``unix_sockets=False``."""
    verdict = Verdict()
    version = tuple(map(int, series.split(".")))
    words = [line.split() for line in lines]
    causes = [line[1] for line in words if line[0] == "cause"]
    for user in USERS:
        own = [line[2:] for line in words if line[1:2] == [user]]
        statuses = {line[0]: line[1] for line in own if len(line) > 1}
        found = [
            f"{user}: tests {name}: exit status {statuses.get(name)}"
            for name in SUITES
            if statuses.get(name) != "0"
        ]
        if statuses.get("detached") != "isolated":
            found.append(f"{user}: netless-exec without handles: {statuses.get('detached')}")
        verdict.note("Python tests", user, "pass", found)
        answer = "works" if version >= RESOLVE_UNIX else "refused"
        found = [
            f"{user}: {name} {statuses.get(name)}, not {answer}"
            for name in INSIDE
            if statuses.get(name) != answer
        ]
        if statuses.get("pool") != "works":
            found.append(f"{user}: Pool {statuses.get('pool')}")
        row = "forkserver, Manager, asyncio servers with `unix_sockets=False`"
        verdict.note(row, user, answer, found)
    mediated = version >= APPARMOR_USERNS
    if causes != ["apparmor-restricted"] * mediated:
        verdict.broken.append(f"the cause without `userns,` is {causes}")
    verdict.broken += [" ".join(line) for line in words if line[0] == "failure"]
    return verdict


def table(verdicts: dict[str, Verdict]) -> str:
    """Facts down, kernels across; where they differ, root's and then the user's."""
    names = list(verdicts)
    rows = dict.fromkeys(row for verdict in verdicts.values() for row in verdict.cells)
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for row in rows:
        cells = [cell(verdicts[name].cells.get(row, {})) for name in names]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(values: dict[str, str]) -> str:
    """One value where both users have the same."""
    return " / ".join(dict.fromkeys(values[user] for user in USERS if user in values)) or "-"
