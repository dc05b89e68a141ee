"""What pyproject.toml has no place for: the cffi module and the stable-ABI tag."""

import platform
import sysconfig

from setuptools import setup

stable_abi = platform.python_implementation() == "CPython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)

setup(
    cffi_modules=["csrc/build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if stable_abi else {},
)
