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
SOURCES = {
    "linux": ["spawn.c", "linux.c", "seal.c", "descriptors.c", INTERPRETER],
    "darwin": ["spawn.c", "macos.c", "no_namespaces.c", INTERPRETER],
}.get(sys.platform, ["unsupported.c", "no_namespaces.c"])
SANITIZE = ["-fsanitize=address,undefined"]
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


def compile_arguments() -> list[str]:
    """Plain by default; NETLESS_WERROR=1 and NETLESS_SANITIZE=1 are for CI."""
    arguments = ["-std=gnu11"]
    if os.environ.get("NETLESS_WERROR") == "1":
        # cffi's generated wrappers have no prototypes and shadow; our files are checked apart.
        arguments += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    if os.environ.get("NETLESS_SANITIZE") == "1":
        arguments += [
            "-g",
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=undefined",
        ]
    return arguments


ffi = FFI()
ffi.cdef(declarations())
ffi.set_source(
    "netless._spawn",
    PREAMBLE,
    sources=[os.path.relpath(HERE / name, ROOT) for name in SOURCES],
    depends=[os.path.relpath(path, ROOT) for path in sorted(HERE.iterdir()) if path.is_file()],
    # Without a compiler the package still installs, and the external wrapper takes over.
    optional=os.environ.get("NETLESS_REQUIRE_NATIVE") != "1",
    define_macros=[("NETLESS_VERSION", f'"{version()}"')],
    include_dirs=[os.path.relpath(HERE, ROOT)],
    extra_compile_args=compile_arguments() if sys.platform != "win32" else [],
    extra_link_args=SANITIZE if os.environ.get("NETLESS_SANITIZE") == "1" else [],
)
