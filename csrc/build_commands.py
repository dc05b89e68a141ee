"""setuptools' commands "build" and "build_ext", which never ship what an earlier build left."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
from pathlib import Path
from typing import Any

from build_launcher import say_at_the_end
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

EXTENSION_MISSING = (
    "the native extension could not be built (the reason is above). What is installed isolates by"
    " the external wrapper (unshare, sandbox-exec): slower, and without the seccomp filter and"
    " Landlock. Install a C compiler and Python's headers (Debian: gcc python3-dev) and build"
    " again; with NETLESS_REQUIRE_NATIVE=1 in the environment this is an error"
)


class Build(build):
    """What the build directory holds goes first: a removed module would be installed again."""

    def finalize_options(self) -> None:
        """Tell the folders that are a build's own from those that the caller chose."""
        names = ("build_lib", "build_scripts", "build_temp")
        chosen = {name for name in names if getattr(self, name) is not None}
        super().finalize_options()
        self.own = [Path(getattr(self, name)) for name in names if name not in chosen]

    def run(self) -> None:
        """Empty them, and those of an interrupted bdist_wheel; of the caller's take our names."""
        for folder in (*self.own, *Path(self.build_base).glob("bdist.*")):
            shutil.rmtree(folder, ignore_errors=True)
        for package in self.distribution.packages or ():
            shutil.rmtree(Path(self.build_lib, *package.split(".")), ignore_errors=True)
        for module in self.distribution.py_modules or ():
            Path(self.build_lib, f"{module}.py").unlink(missing_ok=True)
        super().run()


class BuildExtension(build_ext):
    """Built anew each time: no time stamp tells of other switches, or of another version."""

    def run(self) -> None:
        """The old one goes first, so that it is not what a failed build leaves."""
        self.force = True
        for path in self._places():
            path.unlink(missing_ok=True)
        super().run()
        built = [os.path.exists(self.get_ext_fullpath(each.name)) for each in self.extensions]
        if not all(built):
            say_at_the_end(EXTENSION_MISSING)

    def _places(self) -> list[Path]:
        """Every file that this interpreter would load as one of the extensions."""
        build_py: Any = self.get_finalized_command("build_py")
        found = []
        for each in self.extensions:
            package, _, name = each.name.rpartition(".")
            folders = [Path(self.build_lib, *package.split("."))]
            if self.inplace:
                folders.append(Path(build_py.get_package_dir(package)))
            for suffix in importlib.machinery.EXTENSION_SUFFIXES:
                found += [folder / f"{name}{suffix}" for folder in folders]
        return found
