"""A plugin for tox 4: ``no_network = true`` in an environment.

What installs (dependencies, the package) keeps the network; ``commands_pre``, ``commands``
and ``commands_post`` have none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from .. import _isolation, _wrapper
from .._errors import NetworkIsolationUnavailable
from . import _host

_host.need("tox", extra="tox", majors=(4,))

from tox.execute.local_sub_process import LocalSubProcessExecuteInstance, LocalSubProcessExecutor
from tox.plugin import impl
from tox.report import HandledError
from tox.tox_env.errors import Fail

if TYPE_CHECKING:
    from tox.config.sets import EnvConfigSet
    from tox.execute.api import ExecuteInstance, ExecuteOptions, Outcome
    from tox.execute.request import ExecuteRequest
    from tox.execute.stream import SyncWrite
    from tox.session.state import State
    from tox.tox_env.api import ToxEnv

OPTION, LOOPBACK = "no_network", "no_network_loopback"


@impl
def tox_add_env_config(env_conf: EnvConfigSet, state: State) -> None:
    """The two settings of an environment."""
    env_conf.add_config(
        OPTION,
        of_type=bool,
        default=False,
        desc="commands_pre, commands and commands_post have no network (netless)",
    )
    env_conf.add_config(
        LOOPBACK,
        of_type=bool,
        default=False,
        desc=f"with {OPTION}: each command has a 127.0.0.1 and ::1 of its own",
    )
    if "commands" not in env_conf and env_conf[OPTION]:
        raise HandledError(
            f"{OPTION} is for environments that run commands, {env_conf.name} builds packages"
        )


@impl
def tox_before_run_commands(tox_env: ToxEnv) -> None:
    """From here on the environment starts isolated commands only."""
    if not tox_env.conf[OPTION]:
        if tox_env.conf[LOOPBACK]:
            raise Fail(f"{LOOPBACK} says nothing without {OPTION} = true")
        return
    executor = tox_env.executor
    # One of another plugin may run commands elsewhere, where a prefix would not hold.
    if type(executor).build_instance is not LocalSubProcessExecutor.build_instance:
        raise Fail(f"{OPTION} cannot be combined with {type(executor).__name__}")
    isolation = _isolation.Isolation(loopback=tox_env.conf[LOOPBACK])
    try:
        _wrapper.wrapper_command([sys.executable], isolation, check=True)
    except NetworkIsolationUnavailable as error:
        raise Fail(str(error)) from error
    isolated = _Executor(tox_env.options.is_colored, isolation)
    vars(tox_env)["execute"] = partial(tox_env.execute, executor=isolated)


@impl
def tox_after_run_commands(tox_env: ToxEnv, exit_code: int, outcomes: list[Outcome]) -> None:
    """What comes after the commands has its network again."""
    vars(tox_env).pop("execute", None)


class _Executor(LocalSubProcessExecutor):
    """tox's own, for commands of one isolation."""

    def __init__(self, colored: bool, isolation: _isolation.Isolation) -> None:
        super().__init__(colored)
        self._isolation = isolation

    def build_instance(
        self, request: ExecuteRequest, options: ExecuteOptions, out: SyncWrite, err: SyncWrite
    ) -> ExecuteInstance:
        """One command."""
        instance = _Instance(request, options, out, err)
        instance.isolation = self._isolation
        return instance


class _Instance(LocalSubProcessExecuteInstance):
    """One command: found and allowed by tox, then wrapped."""

    isolation: _isolation.Isolation

    @property
    def cmd(self) -> Sequence[str]:
        """The command that is executed."""
        return _wrapper.wrapper_command(super().cmd, self.isolation)
