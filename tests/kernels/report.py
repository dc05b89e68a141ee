"""What each result of a guest must be, and the table of them all."""

from __future__ import annotations

import errno
import signal
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
WITH_SIBLINGS = ("shared", "private", "make", "map-root")
# Their children are in one network namespace, whose settings uid 0 inside may write.
SHARED_KINDS = ("shared", "map-root", "no-unix")

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
NETNS_COOKIES = (5, 14)
IO_URING_SOCKETS = (5, 19)
FILTER_MECHANISM = (6, 7)
LANDLOCK_SCOPES = (6, 12)
NAMESPACE_IDS = (6, 18)
RESOLVE_UNIX = (7, 1)
APPARMOR_USERNS = (6, 7)

# What `launch --describe` prints.
PLAN = ["way", "layers", "landlock_scoped", "paths_by_landlock", "unix_sockets", "map_root"]
PLAN += ["euid", "proof"]
PROOFS = _native._names("netless_proof", "NETLESS_PROOF_") if _native.lib else {}
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
        self.plans: dict[tuple[str, str], dict[str, int]] = {}
        self.refusals: dict[tuple[str, str], str] = {}
        self.ran: dict[tuple[str, str, str], str] = {}
        self.arrivals = ["no line", "of it"]
        self.odd: list[str] = []
        for line in lines:
            kind, *words = line.split()
            if kind == "fact" and len(words) == 2:
                self.facts[words[0]] = words[1]
            elif kind == "plan" and len(words) == 3 and words[2].startswith("failed:"):
                self.refusals[words[0], words[1]] = words[2]
            elif kind == "plan" and [word.partition("=")[0] for word in words[2:]] == PLAN:
                self.plans[words[0], words[1]] = plan_of(words[2:])
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
        plan = self.plans.get((user, kind))
        if plan is None:
            return None
        sealed = SimpleNamespace(euid=plan["euid"])
        return _native._guarantees(
            SimpleNamespace(**{"unproved": 0, **plan}, sealed=sealed, inherit_sockets=0)
        )

    def proof(self, user: str, kind: str) -> str:
        """How the network namespace of these children was proved to be the right one."""
        return PROOFS.get(self.plans.get((user, kind), {}).get("proof", -1), "not tried")

    def expected_proof(self, user: str, kind: str, *, has_cookie: bool) -> str:
        """By the id that this kernel has, if the child may ask for it."""
        if has_cookie and self.version >= NETNS_COOKIES:
            return "cookie"
        # Only who has power over a network namespace gets a handle of it from a socket: a user
        # has none over the one that a child leaves by making its own.
        knows_outside = kind != "make" or user == "root"
        return "id" if knows_outside and self.version >= NAMESPACE_IDS else "contents"

    def expected(self, user: str, kind: str) -> set[str]:
        """What the README promises on this kernel."""
        promised = set(ALWAYS)
        writes_settings = kind in SHARED_KINDS and (user == "root" or kind == "map-root")
        if self.shuts_siblings(kind) and not writes_settings:
            promised.add("siblings")
        if kind in FILTER_KINDS and self.version < LANDLOCK_SCOPES:
            promised.discard("unix-abstract")
        if kind.endswith("no-unix"):
            promised |= {"unix-path", "names"}
        return promised

    def shuts_siblings(self, kind: str) -> bool:
        """Are siblings kept from each other's sockets and memory here?"""
        return kind.startswith("make") or self.version >= LANDLOCK_SCOPES

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


def plan_of(words: list[str]) -> dict[str, int]:
    """Its fields by name."""
    pairs = (word.split("=") for word in words)
    return {name: int(value) for name, value in pairs}


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
        if claims[kind] != results.expected(user, kind):
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
            private = "held" if guarantee in (claims["private"] or ()) else "open"
            verdict.note("`siblings`, `private=True`", user, private, broken)
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
    # Who may write the settings of a shared namespace is not promised "siblings"; the rest of
    # it holds all the same.
    if guarantee in claims or (guarantee == "siblings" and results.shuts_siblings(kind)):
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
        found += must(user, kind, "user-settings", "shut")
    found += must(user, "unsealed-root", "user-settings", "open")
    verdict.note("no power over the namespace", user, "held", found)

    found = must(user, "unsealed-root", "net-settings", "open")
    for kind in WITH_SIBLINGS:
        found += must(user, kind, "net-settings", "open" if user == "root" else "shut")
    shown = "theirs to write" if user == "root" else "held"
    verdict.note("settings of the network namespace (`/proc/sys/net`)", user, shown, found)

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
    judge_proofs(results, user, verdict)
    judge_files(results, user, verdict)
    judge_starts(results, user, verdict)
    has_filter = results.has_plan(user, "filter")
    found = []
    for kind in FILTER_KINDS:
        if not has_filter and results.refusals.get((user, kind)) != failed("unsupported", "EPERM"):
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
        # Nobody else gets into a network namespace without its user namespace.
        by_proof = failed("verify-user", "EEXIST"), failed("setns-net", "EPERM")
        found += results.must(user, kind, "lie-user", by_proof[user != "root"])
    for kind in ("private", "loopback"):
        found += results.must(user, kind, "lie-unshare", failed("verify-net", "EEXIST"))
    return found


def judge_proofs(results: Results, user: str, verdict: Verdict) -> None:
    """Which proof is used, and whether it sees through a namespace under the kept one's numbers."""
    joining = ("shared", "private", "loopback")
    for row, kinds, shown, has_cookie in (
        ("proof of the network namespace", (*joining, "make"), "shared", True),
        ("... where a filter refuses `getsockopt`", joining, "shared", False),
        ("... and each child makes its own", ("make",), "make", False),
    ):
        suffix, found = "" if has_cookie else "-no-cookie", []
        for kind in kinds:
            proof = results.proof(user, kind + suffix)
            expected = results.expected_proof(user, kind, has_cookie=has_cookie)
            if proof != expected:
                found.append(f"{user}, {kind}{suffix}: proof {proof}, not {expected}")
            if not has_cookie:
                found += results.must(user, kind, "runs-no-cookie", "open")
                found += results.must(user, kind, "no-cookie", "shut")
        verdict.note(row, user, results.proof(user, shown + suffix), found)

    found = results.must(user, "none", "foreign", "open")
    for kind in ("shared", "private", "map-root"):
        for name in ("foreign", "foreign-no-cookie"):
            found += results.must(user, kind, name, failed("verify-net", "EEXIST"))
    verdict.note("kept handles that lead elsewhere", user, "refused", found)


def judge_files(results: Results, user: str, verdict: Verdict) -> None:
    """Renames and links across directories, and mounts in a user namespace inside."""
    must = results.must
    kinds = [kind for kind in NAMESPACE_KINDS + FILTER_KINDS if results.has_plan(user, kind)]
    found: list[str] = []
    for kind in ("none", *kinds):
        found += must(user, kind, "move", "open")
    has_domains = results.facts.get("landlock", "0") != "0"
    if has_domains:
        for kind in ("none", *kinds):
            found += must(user, kind, "domain-move", "open")
            found += must(user, kind, "domain-mounts", "shut")
    row = "renames across directories inside, also for callers in a Landlock file domain"
    verdict.note(row, user, "work" if has_domains else "no such domains", found)

    shuts_paths = [kind for kind in kinds if kind.endswith("no-unix")]
    found = []
    for kind in {"none", *kinds} - set(shuts_paths):
        found += must(user, kind, "mounts", "open")
    verdict.note("`unshare -Urm` inside", user, "works", found)
    by_landlock = results.version >= RESOLVE_UNIX
    found = []
    for kind in shuts_paths:
        found += must(user, kind, "mounts", "shut" if by_landlock else "open")
    shown = "refused" if by_landlock else "works"
    verdict.note("... with `unix_sockets=False`", user, shown, found)


def judge_starts(results: Results, user: str, verdict: Verdict) -> None:
    """Threads, kernels and filters without ``clone3``; what ends a child before ``execve``."""
    must, kinds = results.must, ("shared", "make")
    found: list[str] = []
    for kind in kinds:
        for name in ("no-clone3", "thread", "thread-no-clone3", "thread-no-cookie"):
            found += must(user, kind, name, "open")
    verdict.note(
        "launches by threads with the smallest stacks; without `clone3`", user, "ok", found
    )

    found = must(user, "none", "quit", f"status-{128 + signal.SIGQUIT}-1")
    for kind in kinds:
        found += must(user, kind, "quit", f"status-{128 + signal.SIGKILL}-0")
        found += must(user, kind, "quit-later", f"status-{128 + signal.SIGQUIT}-1")
    verdict.note("SIGQUIT before `execve`", user, "no core", found)

    found = must(user, "none", "lost-packets", "open")
    found += must(user, "none", "lost-stream", f"status-{128 + signal.SIGPIPE}-")
    row = "`write` to a SEQPACKET socket whose peer is gone"
    verdict.note(row, user, "EPIPE, no signal", found)

    kinds += ("filter",) * results.has_plan(user, "filter")
    judge_inherited_names(results, user, kinds, verdict)


def judge_inherited_names(
    results: Results, user: str, kinds: tuple[str, ...], verdict: Verdict
) -> None:
    """A fact that differs: what an AF_UNIX socket without a peer reaches from inside."""
    words = {"open": "reached", "shut": "not reached", failed("descriptors", "EPERM"): "refused"}
    found = results.must(user, "none", "fd-names", "open")
    seen = {results.ran.get((user, kind, "fd-names"), "not tried") for kind in kinds}
    allowed = {"shut"} if results.version >= LANDLOCK_SCOPES else set(words) - {"shut"}
    if len(seen) != 1 or not seen <= allowed:
        found.append(f"{user}: inherited AF_UNIX sockets: {', '.join(map(worded, seen))}")
    row = "abstract names outside by an inherited AF_UNIX socket without a peer"
    verdict.note(row, user, words.get(min(seen), "?"), found)


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
    if results.guarantees("user", "shared") != results.expected("user", "shared"):
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
