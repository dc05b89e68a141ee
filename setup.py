"""What pyproject.toml has no place for: the cffi module, the launcher, the stable-ABI tag."""

import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "csrc"))
from build_commands import Build, BuildExtension
from build_launcher import BuildLauncher

stable_abi = platform.python_implementation() == "CPython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)

setup(
    cffi_modules=["csrc/build.py:ffi"],
    scripts=["csrc/launcher.c"],
    cmdclass={"build": Build, "build_ext": BuildExtension, "build_scripts": BuildLauncher},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if stable_abi else {},
)
