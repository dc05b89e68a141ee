"""What the tests of integrations share: a place where real hosts are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import threading
import uuid
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

from support import PATIENCE

DOCS = Path(__file__).resolve().parent.parent / "docs"
# No host may talk to anybody, whatever it would like to report.
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INDEX": "1",
    "PYTHONWARNINGS": "error:::netless",
    "VIRTUALENV_NO_PERIODIC_UPDATE": "1",
}
# A user namespace that may hold no further one: isolation fails in it, everything else works.
WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    *('echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"', "sh"),
)


def blocks(page: str, language: str) -> list[str]:
    """The code of that language on a page of the documentation."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


class Place:
    """A folder with a home and a temporary folder in it, and what is started from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        home = folder / "home"
        home.mkdir()
        kept = {name: os.environ[name] for name in ("LANG", "USER") if name in os.environ}
        self.environment = {
            **kept,
            **QUIET,
            "HOME": str(home),
            "NETLESS_TEST_TOKEN": self.token,
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.defpath]),
            "TMPDIR": str(self.temporary),
        }

    def run(self, *command: object, check: bool = True, **options) -> subprocess.CompletedProcess:
        options = {"capture_output": True, "text": True, "timeout": 4 * PATIENCE, **options}
        environment = {**self.environment, **options.pop("env", {})}
        done = subprocess.run(
            [str(word) for word in command], cwd=self.folder, env=environment, **options
        )
        assert not check or done.returncode == 0, f"{done.stderr}\n{done.stdout}"
        return done

    def script(self, source: str, *arguments: object, prefix: tuple[str, ...] = (), **options):
        file = self.folder / f"script{len(list(self.folder.glob('script*')))}.py"
        file.write_text(textwrap.dedent(source))
        return self.run(*prefix, sys.executable, file, *arguments, **options)

    def processes(self) -> list[str]:
        """The command lines of what was started from here and still runs."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if self.token.encode() in (entry / "environ").read_bytes():
                        found.append((entry / "cmdline").read_text().replace("\0", " "))
                except OSError:  # ended, or another user's
                    continue
        return found


class Index:
    """A package index with one package, ``needed``, on 127.0.0.1; counts who asks."""

    def __init__(self) -> None:
        wheel = _wheel("needed")
        self.requests = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                self.requests += 1
                page = b'<a href="needed-1.0-py3-none-any.whl">needed-1.0-py3-none-any.whl</a>'
                body = wheel if handler.path.endswith(".whl") else page
                found = handler.path.startswith("/simple/needed/")
                handler.send_response(200 if found else 404)
                handler.send_header("Content-Type", "text/html" if body is page else "binary")
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _wheel(name: str) -> bytes:
    file = BytesIO()
    info = f"{name}-1.0.dist-info/"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(info + "WHEEL", tag)
        wheel.writestr(info + "RECORD", "")
    return file.getvalue()
