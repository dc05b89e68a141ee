"""Is the host of an integration installed, and of a version that it was tried with?"""

from __future__ import annotations

from importlib import metadata


def need(distribution: str, *, extra: str, majors: tuple[int, ...]) -> None:
    """Refuse a host that is missing or of another major version, before it is imported.

    Args:
        distribution: the host's name on a package index.
        extra: the extra of this package that installs it.
        majors: the major versions that are supported.

    Raises:
        ImportError: it is missing or of another major version.
    """
    module = f"netless.integrations.{extra}"
    remedy = f"pip install 'netless[{extra}]'"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise ImportError(
            f"{module} needs {distribution}, which is not installed: {remedy}", name=distribution
        ) from None
    if version.partition(".")[0] not in map(str, majors):
        supported = " or ".join(map(str, majors))
        raise ImportError(
            f"{module} supports {distribution} {supported}, but {version} is installed: {remedy}",
            name=distribution,
        )
