from collections.abc import Sequence
from typing import Any, TypeAlias

ffi: Any
lib: Any

Pipes: TypeAlias = tuple[int, int, int, int, int, int]
Launch: TypeAlias = tuple[
    Sequence[Any], Sequence[Any], Sequence[bytes] | None, Any, Pipes, int, int, int, int, int
]

def spawn(plan: int, launch: tuple[Any, ...], /) -> int | bytes: ...
