"""The real agent programs, fetched once, and how each is started against our model server."""

import json
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.agent_clis.model_server import ModelServer
from tools import agent_clis

MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5-codex", "gemini": "gemini-2.5-flash"}
MODELS["opencode"] = "claude-sonnet-4-5"


def fetched(name: str) -> None:
    """Fetch a program. If that is impossible, its tests are skipped with the reason."""
    reason = _missing(name)
    if reason is not None:
        pytest.skip(f"NOT TRIED: {name} {agent_clis.PROGRAMS[name].version} cannot be fetched here: {reason}")


@cache
def _missing(name: str) -> str | None:
    try:
        agent_clis.fetch(name)
    except agent_clis.NotInstallableError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Cli:
    """One agent program: its line, and the options of `shiftwork work` for it, as the how-to page has them."""

    name: str
    line: list[str]
    options: list[str]
    provider: str
    sessions: str | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return MODELS[self.name]

    def command(self, server: ModelServer) -> list[str]:
        return [part.replace("URL", server.url) for part in self.line]


_CODEX = (
    'model_providers.local={name="local",base_url="URL/v1",wire_api="responses",env_key="OPENAI_API_KEY",'
    "request_max_retries=0,stream_max_retries=0}"
)
_QUIET = [
    "analytics.enabled=false",
    "check_for_update_on_startup=false",
    "features.plugins=false",
    "features.apps=false",
]
CLIS = [
    Cli(
        "claude",
        ["claude", "-p", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash"],
        ["--stdin", "prompt", "--resume-args", "--resume {session_id}"],
        "anthropic",
    ),
    Cli(
        "codex",
        [
            *("codex", "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", "-m", MODELS["codex"]),
            *("-c", _CODEX, "-c", 'model_provider="local"'),
            *(word for setting in _QUIET for word in ("-c", setting)),
            *("{resume}", "-"),
        ],
        ["--stdin", "prompt", "--resume-args", "resume {session_id}", "--model", MODELS["codex"]],
        "openai",
    ),
    Cli(
        "gemini",
        ["gemini", "--output-format", "stream-json", "--yolo", "--model", MODELS["gemini"]],
        ["--stdin", "prompt", "--resume-args", "--resume {session_id}"],
        "google",
    ),
    Cli(
        "opencode",
        ["opencode", "run", "--format", "json", "{resume}", "--", "{prompt}"],
        ["--stdin", "none", "--resume-args", "--session {session_id}", "--model", MODELS["opencode"]],
        "anthropic",
    ),
]


def environment(server: ModelServer, home: Path) -> dict[str, str]:
    """The keys and addresses of all programs. Traffic elsewhere goes to the server as a proxy, which refuses it."""
    home.mkdir(exist_ok=True)
    (home / ".gemini").mkdir(exist_ok=True)
    (home / ".gemini" / "settings.json").write_text(json.dumps(_GEMINI), encoding="utf-8")
    proxy = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), server.url)
    near = "127.0.0.1,localhost"
    return {
        **{name: os.environ[name] for name in ("PATH", "LANG", "XDG_STATE_HOME") if name in os.environ},
        "PATH": os.pathsep.join([*(str(agent_clis.bin_folder(cli.name)) for cli in CLIS), os.environ["PATH"]]),
        "HOME": str(home),
        "TMPDIR": str(home),
        **proxy,
        "NO_PROXY": near,
        "no_proxy": near,
        "ANTHROPIC_BASE_URL": server.url,
        "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-of-a-test",  # a subscription: its windows are reported
        "ANTHROPIC_MODEL": MODELS["claude"],
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "OPENAI_API_KEY": "sk-of-a-test",
        "GEMINI_API_KEY": "of-a-test",
        "GOOGLE_GEMINI_BASE_URL": server.url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "OPENCODE_CONFIG_CONTENT": json.dumps(_opencode(server.url)),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }


_GEMINI = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "telemetry": {"enabled": False},
}


def _opencode(url: str) -> dict[str, object]:
    model = {"cost": {"input": 3, "output": 15}, "limit": {"context": 200_000, "output": 8_000}}
    provider = {"npm": "@ai-sdk/anthropic", "options": {"baseURL": f"{url}/v1", "apiKey": "of-a-test"}}
    name = f"local/{MODELS['opencode']}"
    known = {"provider": {"local": {**provider, "models": {MODELS["opencode"]: model}}}}
    return {**known, "model": name, "small_model": name, "autoupdate": False, "share": "disabled"}
