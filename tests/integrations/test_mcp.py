"""MCP servers by the Python SDK and by node's, as on docs/agents.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosting import WITHOUT_NAMESPACES, Place, blocks
from support import MUST_ISOLATE, Listener, need, need_module

(PAGE,) = (block for block in blocks("agents.md", "python") if "stdio_parameters" in block)
OURS = "from netless.integrations.mcp import stdio_parameters"
CONTROL = """
from mcp import StdioServerParameters

def stdio_parameters(command, args):
    return StdioServerParameters(command=command, args=list(args))
"""
assert OURS in PAGE
SERVER = """
import os, socket
try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as Server

server = Server("tries")

@server.tool()
def connect(host: str, port: int) -> str:
    '''Tries to connect.'''
    try:
        socket.create_connection((host, port), 5).close()
    except OSError as error:
        return f"refused {error.errno}"
    return "reached"

@server.tool()
def variable(name: str) -> str:
    '''Of the environment, or the working directory.'''
    return os.environ.get(name, "") if name else os.getcwd()

server.run("stdio")
"""


@pytest.fixture(autouse=True)
def server(place: Place) -> Path:
    need_module("mcp")
    file = place.folder / "server.py"
    file.write_text(SERVER)
    return file


def test_server_has_no_network(place: Place, server: Path, listener4: Listener) -> None:
    command = ["127.0.0.1", listener4.port, sys.executable, server]
    before = listener4.reached
    assert place.script(PAGE, *command).stdout == "refused 101\n"
    assert listener4.reached == before
    assert place.script(PAGE.replace(OURS, CONTROL), *command).stdout == "reached\n"
    assert listener4.reached > before


START = """
    import sys
    from pathlib import Path
    import netless
    from netless.integrations.mcp import stdio_parameters
"""


def test_program_environment_folder_and_isolation(place: Place, listener4: Listener) -> None:
    tools = place.folder / "tools"
    tools.mkdir()
    (tools / "serve").write_text(f"#!/bin/sh\nexec {sys.executable} server.py\n")
    (tools / "serve").chmod(0o755)
    source = """
        import asyncio, os
        from mcp import ClientSession, stdio_client

        async def ask(server, *questions):
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                for tool, arguments in questions:
                    print((await session.call_tool(tool, arguments)).content[0].text, flush=True)

        folder, port = sys.argv[1:]
        env = {"PATH": f"{folder}/tools:/usr/bin", "ONE": "two"}
        environment = [("variable", {"name": "ONE"}), ("variable", {"name": ""})]
        asyncio.run(ask(stdio_parameters("serve", env=env, cwd=folder), *environment))
        server = stdio_parameters(
            Path("tools/serve"), cwd=Path(folder), isolation=netless.Isolation(loopback=True)
        )
        os.chdir("/")
        asyncio.run(ask(server, ("connect", {"host": "127.0.0.1", "port": port})))
    """
    before = listener4.reached
    script = START.strip("\n") + source.replace("\n    ", "\n")
    done = place.script(script, place.folder, listener4.port)
    assert done.stdout == f"two\n{place.folder}\nrefused 111\n", done.stderr
    assert listener4.reached == before


def test_what_cannot_be_is_an_error_before_any_session(place: Place) -> None:
    (place.folder / "plain").write_text("x")
    source = """
        for arguments, options in (
            (("no-such-server",), {}),
            (("server",), {"env": {"PATH": "/nowhere"}}),
            (("./server",), {"cwd": "/"}),
            (("/etc/passwd",), {}),
            (("./plain",), {"cwd": sys.argv[1]}),
            (("true", "--help"), {}),
            ((["true"],), {}),
            (("true",), {"isolation": True}),
        ):
            try:
                print(stdio_parameters(*arguments, **options))
            except (OSError, TypeError) as error:
                print(type(error).__name__)
    """
    done = place.script(START + source.replace("\n    ", "\n"), place.folder)
    expected = 3 * ["FileNotFoundError"] + 2 * ["PermissionError"] + 3 * ["TypeError"]
    assert done.stdout.split() == expected, done.stdout


def test_server_that_cannot_be_isolated_is_not_started(place: Place, server: Path) -> None:
    need("unshare")
    marker = place.folder / "the server ran"
    server.write_text(f"open({str(marker)!r}, 'w')\n" + SERVER)
    command = ["127.0.0.1", 1, sys.executable, server]
    done = place.script(PAGE, *command, check=False, prefix=WITHOUT_NAMESPACES)
    assert done.returncode == 1
    assert "NetworkIsolationUnavailable: cave_sandbox_os_network_isolation" in done.stderr
    assert not marker.exists()
    control = PAGE.replace(OURS, CONTROL)
    assert place.script(control, *command, prefix=WITHOUT_NAMESPACES).stdout == "refused 111\n"
    assert marker.exists()


# ---- hosts that read JSON ----

(JSON,) = map(json.loads, blocks("agents.md", "json"))
HOST = """
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [server, host, port] = process.argv.slice(2);
const { command, args } = JSON.parse(server);
const client = new Client({ name: "host", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args, env: process.env }));
const found = await client.callTool({ name: "connect", arguments: { host, port: Number(port) } });
console.log(found.content[0].text);
await client.close();
"""


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Node's SDK; NETLESS_TEST_NODE_MODULES names the folder where it was installed before."""
    given = os.environ.get("NETLESS_TEST_NODE_MODULES")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("node")
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    command = [need("npm"), "install", *quiet, "@modelcontextprotocol/sdk@1"]
    done = subprocess.run(command, cwd=folder, timeout=300, capture_output=True, text=True)
    if done.returncode != 0:
        (pytest.fail if MUST_ISOLATE else pytest.skip)(f"npm install: {done.stderr}")
    return folder / "node_modules"


def test_json_of_the_page_by_nodes_sdk(place: Place, listener4: Listener, modules: Path) -> None:
    need("node")
    (place.folder / "node_modules").symlink_to(modules)
    (place.folder / "host.mjs").write_text(HOST)
    (server,) = JSON["servers"].values()
    address = ("127.0.0.1", listener4.port)
    before = listener4.reached
    assert place.run("node", "host.mjs", json.dumps(server), *address).stdout == "refused 101\n"
    assert listener4.reached == before
    assert server["command"] == "netless-exec"
    assert server["args"][0] == "--"
    control = {"command": server["args"][1], "args": server["args"][2:]}
    assert place.run("node", "host.mjs", json.dumps(control), *address).stdout == "reached\n"
    assert listener4.reached > before


def test_json_of_the_page_where_nothing_can_be_isolated(place: Place) -> None:
    (server,) = JSON["servers"].values()
    command = [server["command"], *server["args"]]
    done = place.run(*WITHOUT_NAMESPACES, *command, check=False)
    assert done.returncode == 125
    assert done.stderr.startswith("netless-exec: error: cave_sandbox_os_network_isolation")
    assert "netless-exec: hint: " in done.stderr
