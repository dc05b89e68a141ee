"""The same promises on many kernels: each is booted under emulation and tried, without a network.

``python -m tests.kernels --help``
"""
