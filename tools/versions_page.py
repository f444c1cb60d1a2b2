"""The page of tested versions: agent programs, frameworks and SDKs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tools import agent_clis

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """# Versions that our tests run

This page is generated from `constraints.txt`, `tools/agent_clis.py` and `tests/mcp/node/package.json`,
which pin what the tests fetch. If npm cannot fetch a program, its tests are skipped with the reason.

| what | version | run by | page |
|---|---|---|---|
{rows}

Models are servers on 127.0.0.1 that the tests start, so these were **not tried**: the providers
themselves, also their batch APIs; Slack, whose signed requests follow its documentation; the services
of apprise other than `json://`; Claude Code and Codex over the Agent Client Protocol, which need an
adapter each; sessions of Gemini CLI and OpenCode on another machine.
"""


class Tried(NamedTuple):
    """A package that tests run, and the page that says how to use it."""

    package: str
    tests: str
    page: str


PYTHON = [
    Tried("agent-client-protocol", "tests/worker/test_acp.py", "acp"),
    Tried("pydantic-ai-slim", "tests/integrations/agents", "pydantic-ai"),
    Tried("openai-agents", "tests/integrations/agents", "openai-agents"),
    Tried("openai", "tests/integrations/agents", "openai-agents"),
    Tried("claude-agent-sdk", "tests/integrations/agents", "claude-agent-sdk"),
    Tried("langgraph", "tests/integrations/agents", "langgraph"),
    Tried("langgraph-checkpoint", "tests/integrations/agents", "langgraph"),
    Tried("mcp", "tests/mcp", "mcp"),
    Tried("a2a-sdk", "tests/a2a", "a2a"),
    Tried("apprise", "tests/sinks", "notifications"),
    Tried("opentelemetry-sdk", "tests/worker/test_gen_ai.py", "observe"),
    Tried("opentelemetry-exporter-otlp-proto-http", "tests/worker/test_gen_ai.py", "observe"),
    Tried("genai-prices", "tests/conformance", "accounts"),
]


def versions() -> dict[str, str]:
    """Return the version that the tests fetch, by package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    found = {tried.package: pinned[tried.package].partition(" ")[0] for tried in PYTHON}
    found |= {program.package: program.version for program in agent_clis.PROGRAMS.values()}
    return found | _node()


def _node() -> dict[str, str]:
    text = (ROOT / "tests" / "mcp" / "node" / "package.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)["dependencies"]
    return found


def versions_page() -> str:
    """Return each package with its version, its tests and its page."""
    tried = [Tried(each.package, "tests/agent_clis", "cli-agents") for each in agent_clis.PROGRAMS.values()]
    tried += [*PYTHON, *(Tried(package, "tests/mcp/test_node_clients.py", "mcp") for package in _node())]
    known = versions()
    rows = [
        f"| `{each.package}` | {known[each.package]} | `{each.tests}` | [{each.page}](../howto/{each.page}.md) |"
        for each in tried
    ]
    return INTRODUCTION.format(rows="\n".join(rows))
