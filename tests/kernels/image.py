"""The initramfs: busybox, our own programs, static, and the guest's scripts."""

from __future__ import annotations

import gzip
import shlex
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = ROOT / "tests/programs"
LAUNCH_PATH = ("spawn.c", "fork.c", "channels.c", "linux.c", "proof.c", "seal.c", "descriptors.c")
WRAPPED = ",".join(f"--wrap={name}" for name in ("unshare", "setns", "execve"))
MODULES = ["vsock", "tun"]
PYTHON_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "vsock", "tun"]

# Deliberately broken builds, to see that the matrix notices: file, what it says, what is built.
BREAKS = {
    # Layers are reported as installed and are not there.
    "seal": ("seal.c", "int result = install(plan);", "int result = 0; (void)install;"),
    # ... and nobody looks.
    "proof": (
        "seal.c",
        "if (is_proved || !(report->layers & (int)layer))",
        "if (is_proved || !is_proved)",
    ),
    # The child goes on from whatever namespaces it is in.
    "verify": (
        "proof.c",
        "errno = EEXIST;\n    return netless_fail(report, step);",
        "(void)report, (void)step;\n    return 0;",
    ),
    # A network namespace is known by its inode number and by what it holds, as without ids.
    "ids": ("proof.c", "if (found == 0 || known->id == 0) {", "if (1) {"),
    # ... and what it holds is not looked at.
    "contents": (
        "proof.c",
        "int is_empty = holds_nothing();",
        "int is_empty = 1;\n    (void)holds_nothing;",
    ),
    # A refused unshare(CLONE_NEWNET) goes unnoticed.
    "refusal": (
        "linux.c",
        "NETLESS_TRY(report, NETLESS_STEP_UNSHARE_NET, unshare(CLONE_NEWNET));",
        "(void)!unshare(CLONE_NEWNET);",
    ),
    # No domain of ours grants renames across directories where one around it handles files.
    "refer": ("seal.c", "netless_is_mount_refused(plan->is_single))", "0)"),
    # ... or each of them does.
    "files": (
        "linux.c",
        "return error == EPERM || error == EACCES || error == ENOSYS;",
        "return error != -1;",
    ),
    # Signals dump core while the child has its parent's memory.
    "guard": (
        "spawn.c",
        "NETLESS_TRY(report, NETLESS_STEP_SIGNALS, guard_memory());",
        "(void)guard_memory;",
    ),
    # The bounding set stays as it is.
    "powers": (
        "seal.c",
        "shrink_bounding_set(plan, before)) < 0)",
        "((void)shrink_bounding_set, (void)before, 0)) < 0)",
    ),
}


def launch_sources(folder: Path, breaks: list[str]) -> list[Path]:
    """The files of csrc themselves, or broken copies of them."""
    sources = {name: ROOT / "csrc" / name for name in LAUNCH_PATH}
    for name in breaks:
        file, text, replacement = BREAKS[name]
        content = sources[file].read_text()
        if content.count(text) != 1:
            raise ValueError(f"csrc/{file} no longer has what {name!r} breaks")
        sources[file] = folder / file
        sources[file].write_text(content.replace(text, replacement))
    return list(sources.values())


def compile_programs(folder: Path, breaks: list[str]) -> list[Path]:
    """The static programs of stage C."""
    own = [HERE / name for name in ("launch.c", "opened.c", "around.c")]
    options = ["-I", ROOT / "csrc", f"-Wl,{WRAPPED}", "-pthread"]
    launch = [*launch_sources(folder, breaks), *own, *options]
    built = []
    for name, arguments in {
        "launch": launch,
        "attempt": [HERE / "attempt.c"],
        "holes": [PROGRAMS / "holes.c"],
        "holes32": [PROGRAMS / "holes.c", "-m32"],
        "reach": [PROGRAMS / "reach.c"],
        "connect": [PROGRAMS / "connect.c"],
    }.items():
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", "-static", *arguments]
        subprocess.run([*command, "-o", folder / name], check=True)
        built.append(folder / name)
    return built


def entry(name: str, mode: int, content: bytes = b"") -> bytes:
    """One file of a cpio archive of the "newc" format (cpio(5))."""
    encoded = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return padded(header + encoded) + padded(content)


def padded(data: bytes) -> bytes:
    """Up to a multiple of four bytes."""
    return data + b"\0" * (-len(data) % 4)


class Image:
    """An initramfs in the making."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.folders: set[str] = set()

    def add(self, name: str, content: bytes, mode: int = 0o755) -> None:
        self._add_folders(name)
        self.parts.append(entry(name, 0o100000 | mode, content))

    def link(self, name: str, target: str) -> None:
        self._add_folders(name)
        self.parts.append(entry(name, 0o120777, target.encode()))

    def folder(self, name: str) -> None:
        self._add_folders(f"{name}/x")

    def _add_folders(self, name: str) -> None:
        for parent in reversed(Path(name).parents):
            folder = str(parent)
            if folder != "." and folder not in self.folders:
                self.folders.add(folder)
                self.parts.append(entry(folder, 0o040755))

    def write(self, path: Path) -> Path:
        archive = b"".join([*self.parts, entry("TRAILER!!!", 0)])
        path.write_bytes(gzip.compress(archive, 1, mtime=0))
        return path


def base(job: str, modules: list[tuple[str, bytes]]) -> Image:
    """What every guest has; ``job`` is the shell source that it runs."""
    image = Image()
    for name in ("proc", "sys", "dev", "run", "tmp"):
        image.folder(name)
    image.add("bin/busybox", Path("/bin/busybox").read_bytes())
    applets = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True)
    for name in applets.stdout.split():
        if name != "busybox":
            image.link(f"bin/{name}", "busybox")
    image.add("etc/passwd", b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", 0o644)
    image.add("init", (HERE / "init.sh").read_bytes())
    image.add("job.sh", job.encode(), 0o644)
    for name, content in modules:
        image.add(f"modules/{name}", content, 0o644)
    image.add("modules/order", "\n".join(name for name, _ in modules).encode(), 0o644)
    return image


def for_checks(programs: list[Path], modules: list[tuple[str, bytes]], job: str) -> Image:
    """Stage C: the static programs and one of the jobs that are made of functions.sh."""
    image = base((HERE / job).read_text(), modules)
    image.add("functions.sh", (HERE / "functions.sh").read_bytes(), 0o644)
    for program in programs:
        image.add(program.name, program.read_bytes())
    image.add("sbin/request-key", (HERE / "request-key.sh").read_bytes())
    return image


def for_python(modules: list[tuple[str, bytes]], python: str) -> Image:
    """Stage Python: only the way into the machine's own root."""
    image = base((HERE / "root.sh").read_text(), modules)
    job = f"PYTHON={shlex.quote(python)} TREE={shlex.quote(str(ROOT))}\n"
    image.add("python.sh", job.encode() + (HERE / "python.sh").read_bytes())
    return image


def add_apparmor(image: Image, folder: Path) -> None:
    """apparmor_parser with what it needs, and our profiles."""
    files = [folder / "usr/sbin/apparmor_parser", *folder.glob("usr/share/apparmor-features/*")]
    for path in [*files, folder / "etc/apparmor.d/abi/4.0"]:
        image.add(str(path.relative_to(folder)), path.read_bytes())
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    loader = "ld-linux-x86-64.so.2"
    image.add(f"lib64/{loader}", (libraries / loader).read_bytes())
    image.add("lib/x86_64-linux-gnu/libc.so.6", (libraries / "libc.so.6").read_bytes())
    image.add("etc/apparmor/parser.conf", b"", 0o644)
    image.add("profiles", (HERE / "profiles").read_bytes(), 0o644)
