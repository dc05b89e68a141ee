"""Does isolation work here? Answered by running the launch sequence, never by guessing."""

from __future__ import annotations

from dataclasses import dataclass

from . import _native
from ._errors import NetworkIsolationUnavailable
from ._isolation import DEFAULT, Isolation
from ._popen import uses_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import _wrapper


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What this process can give its children.

    Attributes:
        available: whether a child with this isolation can be started.
        mechanism: how, e.g. ``"namespace"``; None when not available.
        guarantees: names of what such a child cannot do (see the README).
        error: why not; what a launch would raise.
    """

    available: bool
    mechanism: str | None
    guarantees: frozenset[str]
    error: NetworkIsolationUnavailable | None


def require(isolation: Isolation = DEFAULT) -> Probe:
    """As :func:`probe`, but raises where isolation is not available.

    Raises:
        NetworkIsolationUnavailable: with step, errno, cause and hint.
        OSError: out of processes, descriptors or memory.
    """
    found: _native.Plan | _wrapper.Settled
    if uses_wrapper(isolation):
        from . import _wrapper

        found = _wrapper.settle(isolation)
    else:
        found = _native.current_plan(isolation)
    return Probe(available=True, mechanism=found.mechanism, guarantees=found.guarantees, error=None)


def probe(isolation: Isolation = DEFAULT) -> Probe:
    """Run the real launch sequence once, in a child that executes nothing.

    The result is kept for this process and isolation, and taken anew when the
    kept namespace or the process's credentials have changed.

    Raises:
        OSError: out of processes, descriptors or memory.
    """
    try:
        return require(isolation)
    except NetworkIsolationUnavailable as error:
        return Probe(available=False, mechanism=None, guarantees=frozenset(), error=error)
