"""The public names, with the types of what subprocess gives for each kind of text."""

import subprocess
from subprocess import (
    DEVNULL as DEVNULL,
)
from subprocess import (
    PIPE as PIPE,
)
from subprocess import (
    STDOUT as STDOUT,
)
from subprocess import (
    CalledProcessError as CalledProcessError,
)
from subprocess import (
    CompletedProcess as CompletedProcess,
)
from subprocess import (
    SubprocessError as SubprocessError,
)
from subprocess import (
    TimeoutExpired as TimeoutExpired,
)
from subprocess import (
    list2cmdline as list2cmdline,
)
from typing import Any, AnyStr, Literal, overload

from typing_extensions import Unpack

from . import aio as aio
from ._contexts import get_context as get_context
from ._errors import InheritedSocketError as InheritedSocketError
from ._errors import NetworkIsolationUnavailable as NetworkIsolationUnavailable
from ._isolation import Isolation as Isolation
from ._popen import call as call
from ._popen import check_call as check_call
from ._popen import getoutput as getoutput
from ._popen import getstatusoutput as getstatusoutput
from ._probe import Probe as Probe
from ._probe import probe as probe
from ._probe import require as require
from ._process import isolate as isolate
from ._signature import CheckOutput, Command, Run, StartWithOutput
from ._wrapper import wrapper_command as wrapper_command
from .pool import ProcessPoolExecutor as ProcessPoolExecutor

__version__: str

class Popen(subprocess.Popen[AnyStr]):
    isolation: Isolation
    mechanism: str | None
    @overload
    def __init__(
        self: Popen[str],
        args: Command,
        bufsize: int = ...,
        *,
        text: Literal[True],
        encoding: str | None = ...,
        errors: str | None = ...,
        universal_newlines: bool | None = ...,
        **kwargs: Unpack[StartWithOutput],
    ) -> None: ...
    @overload
    def __init__(
        self: Popen[str],
        args: Command,
        bufsize: int = ...,
        *,
        encoding: str,
        text: bool | None = ...,
        errors: str | None = ...,
        universal_newlines: bool | None = ...,
        **kwargs: Unpack[StartWithOutput],
    ) -> None: ...
    @overload
    def __init__(
        self: Popen[bytes],
        args: Command,
        bufsize: int = ...,
        *,
        text: Literal[False] | None = ...,
        encoding: None = ...,
        errors: None = ...,
        universal_newlines: Literal[False] | None = ...,
        **kwargs: Unpack[StartWithOutput],
    ) -> None: ...
    @overload
    def __init__(
        self: Popen[Any],
        args: Command,
        bufsize: int = ...,
        *,
        text: bool | None = ...,
        encoding: str | None = ...,
        errors: str | None = ...,
        universal_newlines: bool | None = ...,
        **kwargs: Unpack[StartWithOutput],
    ) -> None: ...

@overload
def run(
    args: Command,
    *,
    text: Literal[True],
    encoding: str | None = ...,
    errors: str | None = ...,
    universal_newlines: bool | None = ...,
    **kwargs: Unpack[Run],
) -> CompletedProcess[str]: ...
@overload
def run(
    args: Command,
    *,
    encoding: str,
    text: bool | None = ...,
    errors: str | None = ...,
    universal_newlines: bool | None = ...,
    **kwargs: Unpack[Run],
) -> CompletedProcess[str]: ...
@overload
def run(
    args: Command,
    *,
    text: Literal[False] | None = ...,
    encoding: None = ...,
    errors: None = ...,
    universal_newlines: Literal[False] | None = ...,
    **kwargs: Unpack[Run],
) -> CompletedProcess[bytes]: ...
@overload
def run(
    args: Command,
    *,
    text: bool | None = ...,
    encoding: str | None = ...,
    errors: str | None = ...,
    universal_newlines: bool | None = ...,
    **kwargs: Unpack[Run],
) -> CompletedProcess[Any]: ...
@overload
def check_output(
    args: Command,
    *,
    text: Literal[True],
    encoding: str | None = ...,
    errors: str | None = ...,
    universal_newlines: bool | None = ...,
    **kwargs: Unpack[CheckOutput],
) -> str: ...
@overload
def check_output(
    args: Command,
    *,
    encoding: str,
    text: bool | None = ...,
    errors: str | None = ...,
    universal_newlines: bool | None = ...,
    **kwargs: Unpack[CheckOutput],
) -> str: ...
@overload
def check_output(
    args: Command,
    *,
    text: Literal[False] | None = ...,
    encoding: None = ...,
    errors: None = ...,
    universal_newlines: Literal[False] | None = ...,
    **kwargs: Unpack[CheckOutput],
) -> bytes: ...
@overload
def check_output(
    args: Command,
    *,
    text: bool | None = ...,
    encoding: str | None = ...,
    errors: str | None = ...,
    universal_newlines: bool | None = ...,
    **kwargs: Unpack[CheckOutput],
) -> Any: ...
