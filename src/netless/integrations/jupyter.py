"""Jupyter kernels without network: a kernel provisioner.

A kernelspec names it::

    "metadata": {"kernel_provisioner": {"provisioner_name": "netless-provisioner"}}

or the environment variable ``JUPYTER_DEFAULT_PROVISIONER_NAME``, for every kernelspec that
names none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .. import _isolation, _wrapper
from . import _host

_host.need("jupyter_client", extra="jupyter", majors=(8,))

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

__all__ = ["NetlessProvisioner"]

LONGEST = 70
"""Characters of a temporary folder that leave room for a socket's name: 107 in all."""


class NetlessProvisioner(LocalProvisioner):
    """Starts a kernel on this machine, without network.

    The kernel is talked to by sockets in a folder of its own, which only this user may
    enter and which is removed with the kernel: a kernel without network cannot listen on a port
    that its client reaches.

    The ``config`` of the kernelspec's ``kernel_provisioner`` holds fields of
    :class:`netless.Isolation`, for example ``{"loopback": true}``.

    Raises:
        TypeError, ValueError: ``config`` has what no isolation has.
    """

    isolation: _isolation.Isolation
    parent: Any  # a jupyter_client.KernelManager

    def __init__(self, **kwargs: Any) -> None:
        """Take the isolation from ``config``, the rest as :class:`LocalProvisioner` does."""
        names = {field.name for field in fields(_isolation.Isolation)}
        asked: dict[str, Any] = {name: kwargs.pop(name) for name in names & kwargs.keys()}
        for name, value in asked.items():
            if isinstance(value, list):  # JSON has no tuples
                asked[name] = tuple(value)
        if unknown := [name for name in kwargs if not self.has_trait(name)]:
            raise TypeError(f"netless-provisioner: unknown config {', '.join(sorted(unknown))}")
        self.isolation = _isolation.Isolation(**asked)
        if not self.isolation.unix_sockets:
            raise ValueError("netless-provisioner: a kernel is reached by AF_UNIX sockets")
        super().__init__(**kwargs)
        self._folder: weakref.finalize[Any, Any] | None = None  # removes it, also at exit

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Choose the sockets' folder and wrap the kernel's command.

        Raises:
            NetworkIsolationUnavailable: a kernel cannot be isolated here.
            FileNotFoundError, PermissionError: the kernel's program cannot be executed.
        """
        self._choose_sockets()
        with self._nothing_left_on_failure():
            kwargs = await super().pre_launch(**kwargs)
            program, *arguments = kwargs["cmd"]
            program = os.path.expanduser(program)  # jupyter_client does it for what it starts
            if os.sep in program:
                program = os.path.join(kwargs.get("cwd") or "", program)
            path = kwargs["env"].get("PATH", os.defpath)
            kwargs["cmd"] = _wrapper.wrapper_command(
                [program, *arguments], self.isolation, check=True, path=path
            )
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the kernel; nothing is left of its sockets when it cannot be."""
        with self._nothing_left_on_failure():
            return await super().launch_kernel(cmd, **kwargs)

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the folder, unless the next kernel goes on with it."""
        await super().cleanup(restart=restart)
        if not restart:
            self._forget_sockets()

    def _choose_sockets(self) -> None:
        if self._folder is not None and self._folder.alive:
            return  # a restart: clients know the names
        place = None if len(tempfile.gettempdir()) <= LONGEST else "/tmp"
        folder = tempfile.mkdtemp(prefix="netless-kernel-", dir=place)
        self._folder = weakref.finalize(self, _remove, folder, os.getpid())
        manager = self.parent
        manager.transport, manager.ip = "ipc", os.path.join(folder, "socket")
        manager.cache_ports = False

    @contextlib.contextmanager
    def _nothing_left_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._forget_sockets()
            raise

    def _forget_sockets(self) -> None:
        if self._folder is not None:
            self._folder()
        self.parent.cleanup_connection_file()  # it names them


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it that ends
        shutil.rmtree(folder, ignore_errors=True)
