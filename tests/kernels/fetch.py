"""Debian's kernels, by an APT with a configuration, lists and cache of its own."""

from __future__ import annotations

import functools
import lzma
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SUITES = {
    "bullseye-security": f"{MIRROR}-security",
    "bookworm": MIRROR,
    "bookworm-security": f"{MIRROR}-security",
    "trixie": MIRROR,
    "trixie-security": f"{MIRROR}-security",
    "trixie-backports": MIRROR,
    "sid": MIRROR,
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ETC = ("etc/apt.conf.d", "etc/preferences.d")  # APT misses them otherwise
LISTS_LAST = 24 * 3600  # seconds

CONFIGURATION = """
Dir::State "{cache}/state";
Dir::State::status "/dev/null";
Dir::Cache "{cache}/apt";
Dir::Etc "{cache}/etc";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
// The signature counts; a mirror may lag behind what a list says of its own age.
Acquire::Check-Valid-Until "false";
"""


class NotFetched(Exception):
    """A kernel that is not to be had; the message says why."""


@dataclass(frozen=True)
class Kernel:
    """One unpacked kernel: its image, and the folder that its packages were unpacked in."""

    series: str
    release: str
    image: Path
    folder: Path


def cache() -> Path:
    """Where everything fetched is kept: NETLESS_KERNEL_CACHE, or below the user's cache."""
    own = os.environ.get("NETLESS_KERNEL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own).resolve() if own else Path(base) / "netless-kernels"


def numbers(name: str) -> tuple[int, ...]:
    """What versions compare by."""
    return tuple(map(int, re.findall(r"\d+", name)))


def apt(*command: str, cwd: Path | None = None) -> str:
    """The output of an APT command under the private configuration.

    Raises:
        NotFetched: with the last line that it said.
    """
    folder = cache()
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
        raise NotFetched(f"{' '.join(command[:2])}: {words[-1]}")
    return done.stdout


def update_lists() -> None:
    """Fetch the package lists unless they are fresh."""
    folder = cache()
    for name in ("state/lists/partial", "apt/archives/partial", *ETC, "kernels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "apt.conf").write_text(CONFIGURATION.format(cache=folder))
    sources = "".join(
        f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite, mirror in SUITES.items()
    )
    path, stamp = folder / "etc/sources.list", folder / "state/updated"
    is_same = path.exists() and path.read_text() == sources
    if is_same and stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_LAST:
        return
    path.write_text(sources)
    apt("apt-get", "update", "-qq", "--error-on=any")
    stamp.touch()


@functools.cache
def releases(flavour: str) -> dict[str, str]:
    """The newest release of each series, e.g. ``{"6.1": "6.1.0-57-cloud-amd64"}``."""
    pattern = rf"linux-image-(\d[^ ]*\d-{flavour}amd64) "
    names = re.findall(pattern, apt("apt-cache", "search", "--names-only", "^linux-image-[0-9]"))
    found: dict[str, str] = {}
    for name in sorted((name for name in names if name.count(".") > 1), key=numbers):
        found[".".join(map(str, numbers(name)[:2]))] = name
    return dict(sorted(found.items(), key=lambda item: numbers(item[0])))


def series_of(name: str) -> str:
    """A series for a series, a suite, "oldest" or "newest".

    Raises:
        NotFetched: there is no such suite.
    """
    known = list(releases("cloud-"))
    if name in ("oldest", "newest"):
        return known[0 if name == "oldest" else -1]
    if re.fullmatch(r"\d+\.\d+", name):
        return name
    versions = [
        version
        for version, where in re.findall(
            r"\| +(\S+) \| \S+ (\S+)/main", apt("apt-cache", "madison", "linux-image-cloud-amd64")
        )
        if where.removesuffix("-security") == name
    ]
    if not versions:
        raise NotFetched(f"no suite {name!r}")
    return ".".join(map(str, numbers(max(versions, key=numbers))[:2]))


def kernel(series: str, flavour: str = "cloud-") -> Kernel:
    """The newest kernel of the series, from the cache or the mirror.

    Raises:
        NotFetched: the mirror does not have it.
    """
    release = releases(flavour).get(series)
    if release is None:
        raise NotFetched(f"no suite has a kernel {series}")
    folder = cache() / "kernels" / release
    if not folder.is_dir():
        unpack(packages(release), folder)
    images = [*folder.glob("boot/vmlinuz-*"), *folder.glob("usr/lib/modules/*/vmlinuz")]
    if not images:
        raise NotFetched(f"no kernel image in the packages of {release}")
    return Kernel(series, release, images[0], folder)


def packages(release: str) -> list[str]:
    """The packages that its kernel and modules are in: one, or from 6.19 on several.

    Of kernels that are no longer current, backports keep the image without the modules.
    """
    depends = apt("apt-cache", "depends", f"linux-image-{release}")
    parts = re.findall(rf"Depends: (linux-(?:binary|modules)-{re.escape(release)})\n", depends)
    return [f"linux-image-{release}", *sorted(set(parts))]


def apparmor() -> Path:
    """Where the parser of AppArmor 4 is unpacked, with the C library that it wants."""
    folder = cache() / "kernels/apparmor"
    if not folder.is_dir():
        unpack(["apparmor/trixie", "libc6/trixie"], folder)
    return folder


def unpack(names: list[str], folder: Path) -> None:
    """Download the packages and unpack them there, all or nothing."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    partial.mkdir()
    try:
        apt("apt-get", "download", "-qq", *names, cwd=partial)
        for package in partial.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, partial], check=True)
            package.unlink()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def module_closure(kernel: Kernel, wanted: list[str]) -> list[tuple[str, bytes]]:
    """Name and content of the modules and all that they need, in order of loading.

    A module that is built in, or that this kernel does not have, is left out.
    """
    paths = {path.name.split(".")[0]: path for path in kernel.folder.rglob("*.ko*")}
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order or name not in paths:
            return
        for needed in needs(read_module(paths[name])):
            visit(needed.replace("-", "_") if needed not in paths else needed)
        order.append(name)

    for name in wanted:
        visit(name)
    return [(f"{name}.ko", read_module(paths[name])) for name in order]


def read_module(path: Path) -> bytes:
    """The module, decompressed."""
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def needs(module: bytes) -> list[str]:
    """What its "depends=" names; the package has no modules.dep, which depmod makes."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return found[1].decode().split(",") if found and found[1] else []
