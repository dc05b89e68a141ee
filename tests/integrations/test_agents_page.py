"""The recipes of docs/agents.md, as written, in the frameworks that they are for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from textwrap import dedent

import pytest

from hosting import DOCS, WITHOUT_NAMESPACES, Place
from support import Listener, need, need_module

SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", flags=re.DOTALL | re.MULTILINE)
RECIPES = {
    title: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for title, text in SECTION.findall((DOCS / "agents.md").read_text())
}
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', {port})); print('reached')"

LANGCHAIN = """
    from langchain.agents import create_agent
    from langchain.agents.middleware import ShellToolMiddleware
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Scripted(FakeMessagesListChatModel):
        def bind_tools(self, tools, **options):
            return self

    def ask(command):
        call = {"name": "shell", "args": {"command": command}, "id": "1"}
        model = Scripted(responses=[AIMessage("", tool_calls=[call]), AIMessage("done")])
        shell = ShellToolMiddleware(workspace_root=".", execution_policy=NoNetwork())
        answer = create_agent(model, middleware=[shell]).invoke({"messages": ["go"]})
        return answer["messages"][2].content
"""
OPENAI = """
    from agents import Agent, Runner, ShellTool
    from agents.testing import ScriptedModel, assistant_message
    from openai.types.responses import ResponseFunctionShellToolCall

    def ask(command):
        call = {"type": "shell_call", "id": "1", "call_id": "1", "status": "completed"}
        call["action"] = {"commands": [command], "timeout_ms": None, "max_output_length": None}
        call = ResponseFunctionShellToolCall.model_validate(call)
        model = ScriptedModel([[call], [assistant_message("done")]])
        agent = Agent(name="agent", model=model, tools=[ShellTool(executor=without_network)])
        items = asyncio.run(Runner.run(agent, "go")).new_items
        return next(item.output for item in items if item.type == "tool_call_output_item")
"""
SMOLAGENTS = """
    from smolagents import ToolCallingAgent
    from smolagents.models import (
        ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model,
    )

    class Scripted(Model):
        def generate(self, messages, **options):
            self.seen = str(messages)
            name, arguments = self.calls.pop(0)
            function = ChatMessageToolCallFunction(name=name, arguments=arguments)
            call = ChatMessageToolCall(id="1", type="function", function=function)
            return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])

    def ask(code):
        model = Scripted()
        model.calls = [("run_python", {"code": code}), ("final_answer", {"answer": "done"})]
        ToolCallingAgent(tools=[run_python], model=model, verbosity_level=0).run("go")
        return model.seen
"""
TWISTED = """
    import sys
    from twisted.internet import protocol, reactor

    class Child(protocol.ProcessProtocol):
        text = ""
        def outReceived(self, data):
            self.text += data.decode()
        errReceived = outReceived
        def processEnded(self, reason):
            reactor.stop()

    def ask(code):
        child = Child()
        spawn(reactor, child, [sys.executable, "-c", code], env=None)
        reactor.run()
        return child.text
"""
# Section, package, what runs the recipe, what it is told to run, the recipe without netless.
python = f"{sys.executable} -c "
WITHOUT: dict[str, Callable[[str], str]] = {
    "LangChain": lambda text: text.replace(
        'netless.wrapper_command(command, check=True, path=env.get("PATH"))', "command"
    ),
    "OpenAI Agents SDK": lambda text: text.replace(
        "from netless import aio", "import asyncio.subprocess as aio"
    ),
    "smolagents": lambda text: text.replace("netless.run", "subprocess.run"),
    "Twisted": lambda text: text.replace("netless.wrapper_command(command, check=True)", "command"),
}
CASES = [
    ("LangChain", "langchain", LANGCHAIN, f'{python} "{CONNECT}"'),
    ("OpenAI Agents SDK", "agents", OPENAI, f'{python} "{CONNECT}"'),
    ("smolagents", "smolagents", SMOLAGENTS, CONNECT),
    ("Twisted", "twisted", TWISTED, CONNECT),
]
cases = pytest.mark.parametrize(
    ("section", "module", "driver", "command"), CASES, ids=[case[0] for case in CASES]
)


def plain(section: str, source: str) -> str:
    changed = WITHOUT[section](source).replace("import netless", "import subprocess")
    assert "netless" not in changed
    return changed


def program(recipe: str, driver: str) -> str:
    return recipe + dedent(driver) + "import sys\nprint(ask(sys.argv[1]))\n"


@cases
def test_tool_has_no_network(
    section: str, module: str, driver: str, command: str, place: Place, listener4: Listener
) -> None:
    need_module(module)
    (recipe,) = RECIPES[section]
    asked = command.format(port=listener4.port)
    before = listener4.reached
    done = place.script(program(recipe, driver), asked)
    assert "Network is unreachable" in done.stdout, done.stderr
    assert "reached\n" not in done.stdout
    assert listener4.reached == before
    done = place.script(program(plain(section, recipe), driver), asked)
    assert "reached" in done.stdout
    assert "unreachable" not in done.stdout
    assert listener4.reached > before


@cases
def test_tool_that_cannot_be_isolated_runs_nothing(
    section: str, module: str, driver: str, command: str, place: Place
) -> None:
    need("unshare")
    need_module(module)
    (recipe,) = RECIPES[section]
    marker = place.folder / "the tool ran"
    asked = f"open('{marker}', 'w')"
    if command.startswith(python):
        asked = f'{python} "{asked}"'
    done = place.script(program(recipe, driver), asked, check=False, prefix=WITHOUT_NAMESPACES)
    # The agent ends by it, or the framework makes it the tool's output.
    assert "NetworkIsolationUnavailable" in done.stderr or "cave_sandbox_os_" in done.stdout
    assert not marker.exists()
    place.script(program(plain(section, recipe), driver), asked, prefix=WITHOUT_NAMESPACES)
    assert marker.exists()


def test_every_recipe_is_run() -> None:
    with_code = {title for title, code in RECIPES.items() if code}
    assert with_code == {case[0] for case in CASES} | {"MCP servers"}


def test_commands_of_the_openai_executor(place: Place) -> None:
    """Exit statuses, and the time limit, after which the command is gone."""
    need_module("agents")
    (recipe,) = RECIPES["OpenAI Agents SDK"]
    source = """
        import types
        def request(timeout_ms, *commands):
            action = types.SimpleNamespace(commands=commands, timeout_ms=timeout_ms)
            return types.SimpleNamespace(data=types.SimpleNamespace(action=action))

        async def main():
            for limit, commands in ((None, ("echo a; exit 3", "echo b >&2")), (300, ("sleep 60",))):
                for one in (await without_network(request(limit, *commands))).output:
                    print(one.stdout.strip(), one.outcome.type, one.outcome.exit_code, flush=True)

        asyncio.run(main())
    """
    done = place.script(recipe + dedent(source))
    assert done.stdout == "a exit 3\nb exit 0\n timeout None\n", done.stderr
