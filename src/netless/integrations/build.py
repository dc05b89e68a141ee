"""Package builds whose hooks have no network: a runner for ``build`` and pyproject-hooks.

What a front end installs for a build, it installs with network, since it starts ``pip``
by itself; what runs the code of the package, the hooks, goes through the runner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from .. import _isolation, _popen
from . import _host

_host.need("pyproject_hooks", extra="build", majors=(1,))

__all__ = ["Runner", "runner"]


class Runner(Protocol):
    """What pyproject-hooks calls to run one hook."""

    def __call__(
        self,
        cmd: Sequence[str],
        cwd: str | None = None,
        extra_environ: Mapping[str, str] | None = None,
    ) -> None:
        """Run the command to its end.

        Raises:
            subprocess.CalledProcessError: its exit status is not zero.
            NetworkIsolationUnavailable: it could not be isolated and was not run.
        """


def runner(isolation: _isolation.Isolation = _isolation.DEFAULT) -> Runner:
    """A runner that gives every hook this isolation.

    For ``build.ProjectBuilder``, ``build.util.project_wheel_metadata`` and
    ``pyproject_hooks.BuildBackendHookCaller``.

    Raises:
        TypeError: ``isolation`` is no :class:`netless.Isolation`.
    """
    if not isinstance(isolation, _isolation.Isolation):
        raise TypeError(f"isolation must be a netless.Isolation, not {isolation!r}")

    def run(
        cmd: Sequence[str],
        cwd: str | None = None,
        extra_environ: Mapping[str, str] | None = None,
    ) -> None:
        environment = {**os.environ, **(extra_environ or {})}
        _popen.run(cmd, cwd=cwd, env=environment, check=True, isolation=isolation)

    return run
