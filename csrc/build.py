"""The cffi builder of ``netless._spawn``: header to cdef, platform to files."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

INTERPRETER = "pypy.c" if sys.implementation.name == "pypy" else "cpython.c"
COMMON = ["spawn.c", "fork.c", "channels.c", INTERPRETER]
SOURCES = {
    "linux": [*COMMON, "linux.c", "proof.c", "seal.c", "descriptors.c"],
    "darwin": [*COMMON, "macos.c", "no_namespaces.c"],
}.get(sys.platform, ["unsupported.c", "no_namespaces.c"])
SANITIZE = ["-fsanitize=address,undefined"]
# Not gcc's own wrapper of execve: tests/programs/coverage.c says why.
COVERAGE = ["--coverage", "-fprofile-update=atomic", "-fno-builtin-execve", "-g", "-O0"]
PREAMBLE = """
#include "spawn.h"
const char *netless_version(void) { return NETLESS_VERSION; }
"""


def version() -> str:
    """What ``netless.__version__`` says, without importing the package."""
    text = (ROOT / "src" / "netless" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def declarations() -> str:
    """The header's public half, without the lines that only the preprocessor reads."""
    public = (HERE / "spawn.h").read_text().split("/* internal */")[0]
    return "\n".join(line for line in public.splitlines() if not line.startswith("#"))


def is_set(switch: str) -> bool:
    """Is this switch of the environment on? All of them are for CI."""
    return os.environ.get(f"NETLESS_{switch}") == "1"


def compile_arguments() -> list[str]:
    """Plain by default."""
    arguments = ["-std=gnu11"]
    if is_set("WERROR"):
        # cffi's generated wrappers have no prototypes and shadow; our files are checked apart.
        arguments += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    if is_set("COVERAGE"):
        arguments += COVERAGE
    if is_set("SANITIZE"):
        arguments += [
            "-g",
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=undefined",
        ]
    return arguments


def link_arguments() -> list[str]:
    """What the switches need of the linker."""
    if is_set("COVERAGE"):
        return ["--coverage", "-Wl,--wrap=_exit", "-Wl,--wrap=execve"]
    return SANITIZE if is_set("SANITIZE") else []


def sources() -> list[str]:
    """This platform's files, from the root."""
    files = [HERE / name for name in SOURCES]
    if is_set("COVERAGE"):
        files.append(ROOT / "tests" / "programs" / "coverage.c")
    return [os.path.relpath(file, ROOT) for file in files]


ffi = FFI()
ffi.cdef(declarations())
ffi.set_source(
    "netless._spawn",
    PREAMBLE,
    sources=sources(),
    depends=[os.path.relpath(path, ROOT) for path in sorted(HERE.iterdir()) if path.is_file()],
    # Without a compiler the package still installs, and the external wrapper takes over.
    optional=not is_set("REQUIRE_NATIVE"),
    define_macros=[("NETLESS_VERSION", f'"{version()}"')],
    include_dirs=[os.path.relpath(HERE, ROOT)],
    extra_compile_args=compile_arguments() if sys.platform != "win32" else [],
    extra_link_args=link_arguments(),
)
