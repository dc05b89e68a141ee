"""``pytest --netless``: a test session without network, enforced by the operating system.

A module beside the package and not in it, since pytest imports it in every session:
netless itself is imported in those alone that ask for it.
"""

from __future__ import annotations

import os

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "NETLESS_SESSION"
"""In the environment of an isolated session: its network namespace."""

SKIPPED = pytest.mark.skip(reason="needs the network, which --netless takes away")
in_force = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options and the setting."""
    group = parser.getgroup("netless", "no network")
    group.addoption(
        "--netless",
        action="store_true",
        default=None,
        help="run the session without network, subprocesses and xdist's workers included, "
        "but with a 127.0.0.1 and ::1 of its own; skip what is marked network",
    )
    group.addoption(
        "--no-netless",
        dest="netless",
        action="store_false",
        help="run the session with network, whatever the netless setting says",
    )
    parser.addini("netless", "run every session without network, as --netless does", type="bool")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Isolate before the first conftest.py is imported."""
    if _is_asked(early_config, early_config.known_args_namespace.netless):
        early_config.stash[in_force] = _inside() or _isolate()


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker, and run nothing where the isolation was asked for too late."""
    config.addinivalue_line("markers", "network: needs the network; skipped under --netless")
    if _is_asked(config, config.option.netless) and in_force not in config.stash:
        raise pytest.UsageError(
            "--netless: the plugin was loaded after the first conftest.py; load it by -p netless"
        )


def pytest_report_header(config: pytest.Config) -> str | None:
    """What is in force."""
    found = config.stash.get(in_force, None)
    return None if found is None else f"netless: {found}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what says that it needs the network."""
    if in_force in config.stash:
        for item in items:
            if item.get_closest_marker("network"):
                item.add_marker(SKIPPED)


def _is_asked(config: pytest.Config, option: bool | None) -> bool:
    return bool(config.getini("netless")) if option is None else option


def _isolate() -> str:
    """What is in force from here on.

    Raises:
        pytest.UsageError: this process could not be isolated.
    """
    from netless import InheritedSocketError, Isolation, NetworkIsolationUnavailable
    from netless._process import enter

    try:
        plan = enter(Isolation(loopback=True))
    except InheritedSocketError as error:
        raise pytest.UsageError(
            f"--netless: {error.summary()}, open before the session began. A plugin may have "
            "opened it (-p no:NAME leaves one out), or the process that started pytest"
        ) from None
    except NetworkIsolationUnavailable as error:
        raise pytest.UsageError(f"--netless: {error}{_threads(error.cause)}") from None
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--netless: {error}") from None
    os.environ[VARIABLE] = _namespace() or ""
    guarantees = ", ".join(sorted(plan.guarantees))
    return f"no network but a loopback of its own; {plan.mechanism}: {guarantees}"


def _threads(cause: str) -> str:
    """Which they are, as far as Python knows them."""
    if cause != "process-has-threads":
        return ""
    import threading

    names = [thread.name for thread in threading.enumerate()]
    return f". Under pytest a plugin started them (-p no:NAME leaves one out): {', '.join(names)}"


def _inside() -> str | None:
    """What is in force where this process was started inside an isolated session.

    Such as xdist's workers, which have threads before this code runs.  The variable
    alone proves nothing: it must name this process's own namespace, and that must
    have no route that leaves it.
    """
    namespace = _namespace()
    if namespace is None or os.environ.get(VARIABLE) != namespace:
        return None
    if any(interface != "lo" for interface in _routed()):
        return None
    return "inside the isolation of the session that started this one"


def _namespace() -> str | None:
    try:
        found = os.stat("/proc/self/ns/net")
    except OSError:  # not Linux
        return None
    return f"{found.st_dev}:{found.st_ino}"


def _routed() -> Iterator[str]:
    """The interfaces that the routes of this network namespace lead to."""
    with open("/proc/self/net/route") as file:
        yield from (line.split()[0] for line in file if not line.startswith("Iface"))
    if os.path.exists("/proc/self/net/ipv6_route"):
        with open("/proc/self/net/ipv6_route") as file:
            yield from (line.split()[-1] for line in file)
