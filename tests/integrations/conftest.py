"""Real hosts around netless; nothing of them is left behind."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from hosting import Index, Place
from support import Listener

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integrations)
            item.add_marker(pytest.mark.isolated)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory):
    """What virtualenv unpacks once."""
    return {"VIRTUALENV_OVERRIDE_APP_DATA": str(tmp_path_factory.mktemp("virtualenv"))}


@pytest.fixture
def place(kept: dict[str, str]):
    """Short, since names of sockets are; empty of processes and temporary files afterwards."""
    with tempfile.TemporaryDirectory(prefix="nl-", ignore_cleanup_errors=True) as folder:
        here = Place(Path(folder))
        here.environment |= kept
        yield here
        deadline = time.monotonic() + 10  # what was told to end does so in a moment
        while here.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert here.processes() == []
        left = [path.name for path in here.temporary.iterdir()]
        assert [name for name in left if not name.startswith("pip-")] == []


@pytest.fixture
def index(place: Place):
    """A package index on 127.0.0.1, which pip takes everything from."""
    server = Index()
    place.environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"http://127.0.0.1:{server.port}/simple",
        "PIP_NO_CACHE_DIR": "1",
    }
    del place.environment["PIP_NO_INDEX"]
    yield server
    server.close()


@pytest.fixture
def package(place: Place, listener4: Listener, index: Index) -> Path:
    """Needs something of the index; its build backend tries to reach the listener."""
    folder = place.folder / "package"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "attempt.py").write_text(ATTEMPT)
    place.environment["TRY_PORT"] = str(listener4.port)
    return folder


@pytest.fixture
def report(place: Place):
    """What the package's attempts came to since the last time that it was asked."""
    file = place.folder / "report"
    place.environment["TRY_REPORT"] = str(file)

    def read() -> str:
        text = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return text

    return read


PYPROJECT = """
[build-system]
requires = ["needed"]
build-backend = "backend"
backend-path = ["."]
"""
ATTEMPT = """
import os, socket, sys

def attempt(where):
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["TRY_PORT"])), 5).close()
    except OSError as error:
        outcome = f"refused {error.errno}"
    else:
        outcome = "reached"
    with open(os.environ["TRY_REPORT"], "a") as report:
        print(where, outcome, file=report)

if __name__ == "__main__":
    attempt(sys.argv[1])
"""
BACKEND = """
import os, zipfile
import needed
from attempt import attempt

def get_requires_for_build_wheel(config_settings=None):
    attempt("requires")
    return []

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    attempt("wheel")
    if os.environ.get("TRY_FAILING"):
        raise SystemExit("no wheel today")
    with zipfile.ZipFile(os.path.join(wheel_directory, "tries-1.0-py3-none-any.whl"), "w") as wheel:
        info = "tries-1.0.dist-info/"
        text = "Metadata-Version: 2.1\\nName: tries\\nVersion: 1.0\\nRequires-Dist: needed\\n"
        wheel.writestr(info + "METADATA", text)
        tag = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(info + "WHEEL", tag)
        wheel.writestr(info + "RECORD", "")
    return "tries-1.0-py3-none-any.whl"
"""
