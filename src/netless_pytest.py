"""``pytest --netless``: a test session without network, enforced by the operating system.

A module beside the package and not in it, since pytest imports it in every session:
netless itself is imported in those alone that ask for it.
"""

from __future__ import annotations

import os

import pytest

VARIABLE = "NETLESS_SESSION"
"""In the environment of an isolated session: what tells its place from every other."""

POWERS = 1 << 12 | 1 << 21  # CAP_NET_ADMIN, CAP_SYS_ADMIN: a session has put them away for good

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
    from netless._errors import descriptor_in_words
    from netless._process import enter

    try:
        plan = enter(Isolation(loopback=True))
    except InheritedSocketError as error:
        raise pytest.UsageError(
            f"--netless: {descriptor_in_words(error)}, open before the session began. A plugin "
            "may have opened it (-p no:NAME leaves one out), or the process that started pytest"
        ) from None
    except NetworkIsolationUnavailable as error:
        raise pytest.UsageError(f"--netless: {error}{_threads(error.cause)}") from None
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--netless: {error}") from None
    os.environ[VARIABLE] = f"{_identity() or ''}/{_filters()}"
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
    alone proves nothing: it must name the very namespaces that this process is in, and
    these must be, and hold, what a session makes.  In doubt it is another session.
    """
    from netless import _stage

    claimed, _, filters = os.environ.get(VARIABLE, "").rpartition("/")
    if not filters.isdigit() or claimed != _identity():
        return None
    try:
        is_owner = _stage.network_owner() == _stage.namespace("user")
        held = _stage.holds()
    except OSError:
        return None
    if not is_owner or "lo is up" not in held or held - _stage.LOOPBACK:
        return None
    if _filters() < int(filters) or _status("CapBnd", 16) & POWERS:
        return None
    return "inside the isolation of the session that started this one"


def _identity() -> str | None:
    """The namespaces of this process.

    Inode numbers are given out again, what comes before them is not; older kernels do
    not tell it.
    """
    from netless import _stage

    try:
        numbers = (*_stage.namespace("net"), *_stage.namespace("user"))
    except OSError:  # not Linux
        return None
    return "/".join(map(str, (_stage.network_id(), *numbers)))


def _filters() -> int:
    """How many seccomp filters are in force; before Linux 5.9 whether there are any."""
    return _status("Seccomp_filters") or _status("Seccomp") // 2


def _status(field: str, base: int = 10) -> int:
    from netless import _diagnosis

    return int(_diagnosis.status(field) or "0", base)
