"""Types only: what Popen and the functions on it take, shared by their overloads."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import IO, Any, TypeAlias, TypedDict

from ._isolation import Isolation

Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]
Command: TypeAlias = Path | Sequence[Path]
Stream: TypeAlias = int | IO[Any] | None

class Launch(TypedDict, total=False):
    executable: Path | None
    preexec_fn: Callable[[], object] | None
    close_fds: bool
    cwd: Path | None
    env: Mapping[str, Path] | Mapping[bytes, Path] | None
    startupinfo: None
    creationflags: int
    restore_signals: bool
    start_new_session: bool
    pass_fds: Collection[int]
    user: str | int | None
    group: str | int | None
    extra_groups: Iterable[str | int] | None
    umask: int
    pipesize: int
    process_group: int | None

class Start(Launch, total=False):
    stdin: Stream
    stderr: Stream
    shell: bool
    isolation: Isolation

class StartWithOutput(Start, total=False):
    stdout: Stream

class Run(StartWithOutput, total=False):
    bufsize: int
    input: str | bytes | None
    capture_output: bool
    timeout: float | None
    check: bool

class CheckOutput(Start, total=False):
    bufsize: int
    input: str | bytes | None
    timeout: float | None
