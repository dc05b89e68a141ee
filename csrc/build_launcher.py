"""Builds ``netless-exec``, the launcher for those who are not Python, as a script of the wheel.

NETLESS_LAUNCHER_CC is the compiler with its arguments, e.g. ``musl-gcc -static``. Without it
that is zig where ``ziglang`` is installed, which gives a static executable, else the
interpreter's own C compiler.
"""

from __future__ import annotations

import atexit
import errno
import importlib.util
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from setuptools import Command

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "netless"
NAME = "netless-exec"

SOURCES = ["launcher.c", "diagnosis.c"]
PLATFORM_SOURCES = {
    "linux": ["spawn.c", "fork.c", "channels.c", "linux.c", "proof.c", "seal.c", "descriptors.c"],
    "darwin": ["spawn.c", "fork.c", "channels.c", "macos.c", "no_namespaces.c"],
}
ELSEWHERE = ["unsupported.c", "no_namespaces.c"]
# By the kernel's machine and whether the interpreter's words have 64 bits.
ZIG_MACHINES = {
    ("x86_64", True): "x86_64",
    ("x86_64", False): "x86",
    ("aarch64", True): "aarch64",
}


def say_at_the_end(message: str) -> None:
    """A warning after everything else that this build prints."""
    atexit.register(print, f"netless: WARNING: {message}.", file=sys.stderr, flush=True)


class BuildLauncher(Command):
    """The command build_scripts: where others copy scripts, this compiles the only one."""

    description = f"build {NAME}"
    user_options = [("build-dir=", "d", "directory to build in")]  # noqa: RUF012

    def initialize_options(self) -> None:
        """The directory is what the command "build" says."""
        self.build_dir = ""

    def finalize_options(self) -> None:
        """The wheel's scripts come from there."""
        self.build_dir = self.get_finalized_command("build").build_scripts

    def get_source_files(self) -> list[str]:
        """None that the extension does not name."""
        return []

    def run(self) -> None:
        """Without a compiler the package still installs, unless NETLESS_REQUIRE_NATIVE=1."""
        self.mkpath(self.build_dir)
        output = Path(self.build_dir) / NAME
        output.unlink(missing_ok=True)  # else a failed build would ship it
        if sys.platform == "win32":
            return
        try:
            build(output)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("NETLESS_REQUIRE_NATIVE") == "1":
                raise
            self.warn(f"{NAME} could not be built: {error}")
            say_at_the_end(f"{NAME} could not be built: {error}")


def build(output: Path) -> None:
    """Compile and link, with the first compiler that can."""
    *others, last = _compilers()
    for compiler in others:
        try:
            link(output, compiler)
        except (OSError, subprocess.CalledProcessError):
            continue
        return
    link(output, last)


def _word_flags() -> list[str]:
    """A 64-bit kernel's compiler, asked for what a 32-bit interpreter is."""
    is_32_bit = sys.maxsize < 2**32
    return ["-m32"] if is_32_bit and platform.machine() == "x86_64" else []


def _compilers() -> Iterator[list[str]]:
    chosen = os.environ.get("NETLESS_LAUNCHER_CC")
    if chosen:
        yield shlex.split(chosen)
        return
    machine = ZIG_MACHINES.get((platform.machine(), sys.maxsize > 2**32))
    is_sanitized = os.environ.get("NETLESS_SANITIZE") == "1"
    if sys.platform == "linux" and machine and not is_sanitized:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl"]
        if importlib.util.find_spec("ziglang") is not None:
            yield [*zig, "-static", "-ffunction-sections", "-Wl,--gc-sections"]
    own = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    flags = [os.environ.get(name, "") for name in ("CFLAGS", "ARCHFLAGS", "LDFLAGS")]
    command = [part for text in (own, *flags) for part in shlex.split(text)]
    yield [*command, *_word_flags()] if sys.platform == "linux" else command


def link(output: Path, compiler: list[str], system: str = sys.platform) -> None:
    """Compile and link with this one.

    Raises:
        OSError, subprocess.CalledProcessError: it is not there, or it fails.
    """
    names = [*SOURCES, *PLATFORM_SOURCES.get(system, ELSEWHERE)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "texts.h").write_text(texts())
        command = [*compiler, *_arguments(), f"-I{folder}", f"-I{HERE}", "-o", str(output)]
        subprocess.run([*command, *(str(HERE / name) for name in names)], check=True)


def _arguments() -> list[str]:
    arguments = ["-std=gnu11", f'-DNETLESS_VERSION="{version()}"']
    if os.environ.get("NETLESS_WERROR") == "1":
        arguments += ["-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes", "-Werror"]
    if os.environ.get("NETLESS_SANITIZE") == "1":
        sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
        return [*arguments, "-g", "-O1", *sanitize]
    return [*arguments, "-Os", "-s", "-fno-asynchronous-unwind-tables"]


def version() -> str:
    """The package's version, without importing it."""
    found = re.search(r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.M)
    if found is None:
        raise LookupError("no __version__ in the package")
    return found[1]


# ---- texts.h: names from the header, words from the Python side ----


def texts() -> str:
    """Every name and text that the launcher shares with the package, as C."""
    # Under another name, and without what the package's own __init__ imports.
    package = types.ModuleType("netless_texts")
    package.__path__ = [str(PACKAGE)]
    sys.modules["netless_texts"] = package
    diagnosis, errors, isolation, profile = (
        importlib.import_module(f"netless_texts.{name}")
        for name in ("_diagnosis", "_errors", "_isolation", "_profile")
    )
    constants = ("CLONE_NEWUSER", "CAP_SETFCAP", "MOST_NAMESPACES")
    lines = [
        "/* Made by build_launcher.py. */",
        "#include <errno.h>",
        "#include <sys/socket.h>",
        f"#define CODE {_quoted(errors.NetworkIsolationUnavailable.code)}",
        f"#define HINT {_quoted(diagnosis.HINT)}",
        f"#define DEFAULT_PATH {_quoted(os.defpath)}",
        f"#define PROFILE {_quoted(profile.PROFILE)}",
        f"#define UNIX_SOCKETS {_quoted(profile.UNIX_SOCKETS)}",
        f"enum {{ {', '.join(f'{name} = {getattr(diagnosis, name)}' for name in constants)} }};",
        _array("char *const", "MECHANISMS", map(_quoted, isolation.MECHANISMS)),
        _array("char *const", "STEPS", map(_quoted, _enum("step"))),
        _kinds(errors.KINDS),
        _named("ERRORS", errno.errorcode),
        _named("FAMILIES", {family.value: family.name for family in socket.AddressFamily}),
        *(
            _array("int", name, map(_step, getattr(diagnosis, name)))
            for name in ("MAKING", "MAPPING", "PROC_STEPS")
        ),
        *(
            _array("int", name, (errno.errorcode[number] for number in getattr(diagnosis, name)))
            for name in ("LAYER_ERRORS", "NOT_THERE")
        ),
        _purposes(diagnosis.PURPOSES),
        *_findings(diagnosis),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A C string; JSON's escapes are C's as long as it is ASCII."""
    return json.dumps(text.encode("ascii").decode())


def _array(kind: str, name: str, items: Iterable[str]) -> str:
    return f"static const {kind} {name}[] = {{{', '.join(items)}}};"


def _enum(name: str) -> list[str]:
    """The elements of one enum of spawn.h, as the package names them."""
    header = re.sub(r"/\*.*?\*/", "", (HERE / "spawn.h").read_text(), flags=re.S)
    found = re.search(rf"enum netless_{name} {{(.*?)}}", header, re.S)
    if found is None or "=" in found[1]:
        raise LookupError(f"enum netless_{name} does not count from 0")
    prefix = f"NETLESS_{name.upper()}_"
    elements = [element.strip() for element in found[1].split(",")]
    return [element.removeprefix(prefix).lower().replace("_", "-") for element in elements]


def _step(name: str) -> str:
    return f"NETLESS_STEP_{name.upper().replace('-', '_')}"


def _kinds(words: dict[str, str]) -> str:
    rows = (f"{{{_quoted(kind)}, {_quoted(words.get(kind, ''))}}}" for kind in _enum("kind"))
    return _array("struct { const char *name, *meaning; }", "KINDS", rows)


def _named(name: str, names: Mapping[int, str]) -> str:
    """Names of numbers that are not the same everywhere, as far as the target has them."""
    rows = (f"#ifdef {word}\n    {{{word}, {_quoted(word)}}},\n#endif" for word in names.values())
    return "\n".join([f"static const struct netless_name {name}[] = {{", *rows, "};"])


def _purposes(purposes: dict[str, str]) -> str:
    rows = (
        _quoted(f"the step is {purposes[step]}" if step in purposes else "")
        for step in _enum("step")
    )
    return _array("char *const", "PURPOSES", rows)


def _findings(diagnosis: types.ModuleType) -> Iterator[str]:
    found = {
        name: each for name, each in vars(diagnosis).items() if isinstance(each, diagnosis.Finding)
    }
    for layer, each in diagnosis.LAYER_REFUSED.items():
        found[f"LAYER_REFUSED_{layer.upper()}"] = each
    found["UNSUPPORTED"] = diagnosis.unsupported_platform()
    for name, each in found.items():
        words = ", ".join(map(_quoted, (each.cause, each.meaning, each.hint)))
        yield f"static const struct netless_finding {name} = {{{words}}};"
