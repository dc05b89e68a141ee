"""``netless-exec``: the native launcher, where it was installed with this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import __version__
from ._isolation import Isolation

NAME = "netless-exec"


def find() -> str | None:
    """The absolute path of this very version's launcher, or None.

    Never by way of PATH: installed beside this package as its RECORD says, or, where there is
    no such record (an editable installation), beside the interpreter.
    """
    if sys.platform not in ("linux", "darwin"):
        return None
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        with open(os.path.join(site, f"netless-{__version__}.dist-info", "RECORD")) as record:
            places = [line.partition(",")[0] for line in record]
    except OSError:
        places = _beside_the_interpreter()
    for place in places:
        if os.path.basename(place) == NAME:
            path = os.path.normpath(os.path.join(site, place))
            if os.access(path, os.X_OK):
                return path
    return None


def _beside_the_interpreter() -> list[str]:
    import sysconfig

    folders = [sysconfig.get_path("scripts")]
    if sys.executable:
        folders.append(os.path.dirname(sys.executable))
    return [os.path.join(folder, NAME) for folder in folders]


def command(path: str, args: Sequence[str], isolation: Isolation) -> list[str]:
    """The launcher's command line for this isolation."""
    flags = {
        "--loopback": isolation.loopback,
        "--private": isolation.private,
        "--no-unix-sockets": not isolation.unix_sockets,
        "--map-root": isolation.map_root,
        "--inherit-sockets": isolation.inherit_sockets,
    }
    options = [flag for flag, wanted in flags.items() if wanted]
    if isolation.mechanism != "auto":
        options += ["--mechanism", isolation.mechanism]
    if isolation.fallback is not None:
        options += ["--fallback", isolation.fallback]
    return [path, *options, "--", *args]
