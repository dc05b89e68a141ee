"""What an installed netless must do on any interpreter; needs nothing but the installation.

``python smoke.py [MECHANISM]``, where MECHANISM is what must be found (default: namespace).
Each denial has its control: the same attempt without netless reaches a listener on 127.0.0.1.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import sysconfig
import threading
import unittest
from pathlib import Path

import netless
from netless import Isolation, NetworkIsolationUnavailable

SCRIPTS = Path(sysconfig.get_path("scripts"))
MECHANISM = "namespace"
CONNECT = (
    "import socket, sys\n"
    "socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10).sendall(b'here')\n"
)


class Smoke(unittest.TestCase):
    """One listener on loopback, and what may reach it."""

    def setUp(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listener.close)
        port = str(self.listener.getsockname()[1])
        self.attempt = [sys.executable, "-c", CONNECT, port]

    def reaches(self, module, *prefix: str, **options) -> bool:
        """Does the attempt get through? The listener's word, and the child's, which must agree."""
        got: list[bytes] = []

        def accept() -> None:
            with self.listener.accept()[0] as connection:
                got.append(connection.recv(4))

        thread = threading.Thread(target=accept)
        thread.start()
        status = module.call([*prefix, *self.attempt], stderr=subprocess.DEVNULL, **options)
        if status != 0:  # the thread still waits: this process itself lets it go
            with socket.create_connection(self.listener.getsockname()) as knock:
                knock.sendall(b"stop")
        thread.join()
        self.assertEqual(got, [b"here" if status == 0 else b"stop"])
        return status == 0

    def test_the_attempt_works_without_netless(self) -> None:
        """The control of all below."""
        self.assertTrue(self.reaches(subprocess))

    def test_denies(self) -> None:
        self.assertFalse(self.reaches(netless))
        self.assertFalse(self.reaches(netless, isolation=Isolation(loopback=True)))
        self.assertEqual(netless.Popen(["true"]).wait(), 0)

    def test_mechanism(self) -> None:
        with netless.Popen(["true"]) as process:
            self.assertEqual(process.mechanism, MECHANISM)
        self.assertEqual(netless.probe().mechanism, MECHANISM)
        self.assertIn("ip", netless.probe().guarantees)

    def test_preexec_fn(self) -> None:
        """Inside, or refused: PyPy has no way in for the extension."""
        isolation = Isolation()
        if sys.implementation.name == "pypy" and MECHANISM != "wrapper":
            with self.assertRaisesRegex(NetworkIsolationUnavailable, "PyPy"):
                netless.call(["true"], preexec_fn=lambda: None)
            isolation = Isolation(mechanism="wrapper")
        told = netless.check_output(
            ["true"],
            preexec_fn=lambda: os.write(1, os.readlink("/proc/self/ns/net").encode()),
            isolation=isolation,
        )
        self.assertRegex(told.decode(), r"^net:\[\d+\]$")
        self.assertNotEqual(told.decode(), os.readlink("/proc/self/ns/net"))

    def test_environment(self) -> None:
        os.environ["NETLESS_SMOKE"] = "smoke"
        self.assertEqual(netless.check_output("echo $NETLESS_SMOKE", shell=True), b"smoke\n")
        env = {"A": "1"}
        self.assertEqual(netless.check_output("echo $A", shell=True, env=env), b"1\n")

    def test_missing_program(self) -> None:
        with self.assertRaises(FileNotFoundError):
            netless.call(["/no/such/program"])

    def test_command_line(self) -> None:
        run = [str(SCRIPTS / "netless"), "run", "--"]
        self.assertEqual(subprocess.call([*run, sys.executable, "-c", "pass"]), 0)
        self.assertEqual(subprocess.call([*run, "sh", "-c", "exit 7"]), 7)
        self.assertFalse(self.reaches(subprocess, *run))

    def test_launcher(self) -> None:
        """The native launcher, in the wheels that have it."""
        launcher = SCRIPTS / "netless-exec"
        if not launcher.exists():
            self.skipTest("this installation has no netless-exec")
        self.assertEqual(subprocess.call([launcher, "--", "sh", "-c", "exit 7"]), 7)
        self.assertFalse(self.reaches(subprocess, str(launcher), "--"))

    def test_doctor(self) -> None:
        doctor = [str(SCRIPTS / "netless"), "doctor"]
        text = subprocess.run(doctor, stdout=subprocess.PIPE, check=True, text=True).stdout
        self.assertIn(f"ready ({MECHANISM})", text)
        told = json.loads(subprocess.check_output([*doctor, "--json"]))
        self.assertEqual(told["facts"]["extension"], MECHANISM != "wrapper")

    def test_version_is_one(self) -> None:
        version = importlib.metadata.version("netless")
        self.assertEqual(version, netless.__version__)
        told = subprocess.check_output([SCRIPTS / "netless", "--version"], text=True)
        self.assertEqual(told, f"netless {version}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        MECHANISM = sys.argv.pop()
    unittest.main()
