"""Provider limits and errors, as printed by coding agents and raised by API clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Fail, Worker
from tests.worker.command_runner import CommandRunner, ask, desk_on

ACCOUNT = ("--provider", "anthropic", "--account", "team")
WINDOW = 5 * 3600


@pytest.fixture
def commands(store_url: str, tmp_path: Path) -> Iterator[CommandRunner]:
    with desk_on(store_url, tmp_path) as made:
        yield made


def claude(result: str, *between: dict[str, Any], **final: Any) -> list[dict[str, Any]]:
    begun = {"type": "system", "subtype": "init", "session_id": "S", "model": "claude-opus-4-6"}
    ended = {"type": "result", "subtype": "success", "is_error": True, "session_id": "S", "total_cost_usd": 0}
    return [begun, *between, {**ended, "result": result, **final}]


def synthetic(error: str) -> dict[str, Any]:
    """Return the message that Claude Code shows instead of the model's answer."""
    return {"type": "assistant", "error": error, "message": {"id": "m", "model": "<synthetic>", "content": []}}


def codex(message: str) -> list[dict[str, Any]]:
    return [
        {"type": "thread.started", "thread_id": "T"},
        {"type": "turn.started"},
        {"type": "error", "message": message},
        {"type": "turn.failed", "error": {"message": message}},
    ]


def opencode(status: int, message: str, **headers: str) -> list[dict[str, Any]]:
    data = {"message": message, "statusCode": status, "isRetryable": True, "responseHeaders": headers}
    return [{"type": "error", "sessionID": "O", "error": {"name": "APIError", "data": data}}]


def gemini(message: str, kind: str = "Error") -> list[dict[str, Any]]:
    return [
        {"type": "result", "status": "error", "error": {"type": kind, "message": message}, "stats": {}},
    ]


async def run(
    shop: Queue,
    mcp_server: CommandRunner,
    *outputs: list[dict[str, Any]] | str,
    code: int = 1,
    options: tuple[str, ...] = (),
) -> list[Any]:
    """Run an agent that prints one of these outputs per task; return the tasks."""
    folder = mcp_server.work_dir.parent / "printed"
    folder.mkdir()
    tasks = [await ask(shop, str(number)) for number, _ in enumerate(outputs)]
    for number, output in enumerate(outputs):
        text = output if isinstance(output, str) else "\n".join(map(json.dumps, output)) + "\n"
        (folder / str(number)).write_text(text)
    mcp_server.run(["sh", "-c", f'cat "{folder}/$SHIFTWORK_PROMPT"; exit {code}'], *ACCOUNT, *options)
    return [await shop.get(task) for task in tasks]


def info(shop: Queue, status: str = "rejected", **more: Any) -> dict[str, Any]:
    known = {"status": status, "resetsAt": int(shop.now()) + WINDOW, "rateLimitType": "five_hour", "utilization": 1}
    return {"type": "rate_limit_event", "rate_limit_info": {**known, **more}, "session_id": "S"}


@pytest.mark.parametrize("code", [0, 1])
async def test_claude_code_session_limit_cools_down_its_account(
    shop: Queue, commands: CommandRunner, code: int
) -> None:
    words = "You've hit your session limit · resets 2:30pm (Europe/Paris)"
    (task,) = await run(
        shop, commands, claude(words, info(shop), synthetic("rate_limit"), api_error_status=429), code=code
    )
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0)
    assert WINDOW - 120 < task.available_at - shop.now() <= WINDOW
    (rests,) = await shop.cooldowns.list()
    assert rests.key == "provider:anthropic,account:team"
    assert rests.until == pytest.approx(task.available_at, abs=1)
    assert str(rests.reason).startswith("five_hour rate limit hit by")
    assert task.session_id == "S"


async def test_reset_time_is_read_from_text_without_an_event(shop: Queue, commands: CommandRunner) -> None:
    (task,) = await run(shop, commands, claude(f"Claude AI usage limit reached|{int(shop.now()) + WINDOW}"))
    assert task.failure_reason == "rate_limit"
    assert WINDOW - 120 < task.available_at - shop.now() <= WINDOW


async def test_codex_usage_limit_is_waited_for(shop: Queue, commands: CommandRunner) -> None:
    words = "You've hit your usage limit. Upgrade to Pro or try again in 3 hours 12 minutes."
    (task,) = await run(shop, commands, codex(words))
    assert (task.failure_reason, task.attempts) == ("rate_limit", 0)
    assert 11_400 < task.available_at - shop.now() <= 11_520
    assert [rests.key for rests in await shop.cooldowns.list()] == ["provider:anthropic,account:team"]


async def test_opencode_headers_are_read(shop: Queue, commands: CommandRunner) -> None:
    (task,) = await run(shop, commands, opencode(429, "Too Many Requests", **{"retry-after": "1800"}))
    assert task.failure_reason == "rate_limit"
    assert 1_680 < task.available_at - shop.now() <= 1_800


async def test_overload_pauses_the_model_that_the_agent_names(shop: Queue, commands: CommandRunner) -> None:
    overloads = [
        claude("API Error: 529 Overloaded", synthetic("overloaded"), api_error_status=529),
        codex("Selected model is at capacity. Please try a different model."),
        gemini("The model is overloaded. Please try again later."),
        opencode(503, "Service Unavailable"),
    ]
    for task in await run(shop, commands, *overloads):
        assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0), task.last_error
    assert [rests.key for rests in await shop.cooldowns.list()] == ["provider:anthropic,model:claude-opus-4-6"]


async def test_refused_credentials_are_an_auth_failure(shop: Queue, commands: CommandRunner) -> None:
    await shop.settings.set("circuit_breaker", None)
    await shop.settings.set("cooldown.others", 0)  # with cooldowns the first of them rests the account of all
    refusals: list[list[dict[str, Any]] | str] = [
        claude("Invalid API key · Please run /login", synthetic("authentication_failed")),
        claude("Failed to authenticate.", api_error_status=401),
        codex("unexpected status 401 Unauthorized: Missing bearer or basic authentication in header"),
        opencode(401, "No cookie auth"),
        gemini("API key not valid. Please pass a valid API key."),
        "Invalid API key · Please run /login\n",
    ]
    for task in await run(shop, commands, *refusals):
        assert (task.status, task.failure_reason) == ("dead_lettered", "auth_failure"), task.last_error
    assert await shop.cooldowns.list() == []


async def test_exhausted_credit_is_retried_after_an_hour(shop: Queue, commands: CommandRunner) -> None:
    (task,) = await run(shop, commands, claude("Credit balance is too low", synthetic("billing_error")))
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0)
    assert 3_480 < task.available_at - shop.now() <= 3_960


async def test_nearly_exhausted_window_is_not_a_failure(shop: Queue, commands: CommandRunner) -> None:
    near = info(shop, "allowed_warning", utilization=0.9)
    (task,) = await run(shop, commands, claude("done", near, is_error=False), code=0)
    assert task.status == "completed"


async def test_agent_error_after_a_limit_event_is_not_a_rate_limit(shop: Queue, commands: CommandRunner) -> None:
    overage = info(shop, isUsingOverage=True, overageStatus="allowed")
    answer = {"type": "assistant", "message": {"id": "n", "content": [{"type": "text", "text": "here"}]}}
    own = [
        claude("", info(shop, "allowed_warning"), subtype="error_max_turns"),
        claude("", overage, subtype="error_max_turns"),
        claude("", synthetic("overloaded"), answer, subtype="error_max_turns"),
    ]
    await shop.settings.set("circuit_breaker", None)
    for task in await run(shop, commands, *own):
        assert (task.status, task.failure_reason) == ("dead_lettered", "agent_error"), task.last_error
    assert await shop.cooldowns.list() == []


async def test_successful_reconnect_of_codex_is_not_a_failure(shop: Queue, commands: CommandRunner) -> None:
    events: list[dict[str, Any]] = [
        {"type": "thread.started", "thread_id": "T"},
        {"type": "error", "message": "Reconnecting... 1/5 (unexpected status 429 Too Many Requests)"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "done"}},
        {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}},
    ]
    (task,) = await run(shop, commands, events, code=0)
    assert task.status == "completed"


async def test_tokens_of_codex_are_priced_so_that_its_cost_limit_applies(shop: Queue, commands: CommandRunner) -> None:
    used = {"input_tokens": 1_000_000, "cached_input_tokens": 800_000, "output_tokens": 10_000}
    events: list[dict[str, Any]] = [{"type": "thread.started"}, {"type": "turn.completed", "usage": used}]
    (task,) = await run(shop, commands, events, code=0, options=("--model", "gpt-5-codex"))
    assert task.cost_usd == pytest.approx(0.2 * 1.25 + 0.8 * 0.125 + 0.01 * 10)
    (cost,) = (await shop.budgets.costs("model")).costs
    assert (cost.value, cost.cost_usd) == ("gpt-5-codex", task.cost_usd)


async def test_cost_that_claude_reports_is_not_added_to_a_price_of_its_tokens(
    shop: Queue, commands: CommandRunner
) -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 10_000}
    answer = {"type": "assistant", "message": {"id": "m", "model": "claude-opus-4-6", "content": [], "usage": usage}}
    events = claude("done", answer, is_error=False, total_cost_usd=0.25, usage=usage)
    (task,) = await run(shop, commands, events, code=0)
    assert task.cost_usd == 0.25


class ApiError(Exception):
    def __init__(self, text: str, status: int, headers: dict[str, str]) -> None:
        super().__init__(text)
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers)


async def after(shop: Queue, error: Exception) -> Any:
    """Run a handler that raises this; return the task."""
    worker = Worker(provider="openai", account="team")

    @worker.handler("code")
    async def code(_ctx: Context) -> None:
        raise error

    task = (await shop.submit(type="code")).id
    await worker.run(shop, until_idle=True)
    return await shop.get(task)


async def test_headers_of_a_raised_error_set_the_wait(shop: Queue) -> None:
    task = await after(shop, ApiError("slow down", 429, {"Retry-After": "1800", "set-cookie": "secret"}))
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0)
    assert 1_680 < task.available_at - shop.now() <= 1_800
    assert task.result.data == {"provider_error": {"status": 429, "headers": {"retry-after": "1800"}}}
    assert [rests.key for rests in await shop.cooldowns.list()] == ["provider:openai,account:team"]


async def test_raised_401_pauses_its_account(shop: Queue) -> None:
    task = await after(shop, ApiError("no", 401, {}))
    assert (task.status, task.failure_reason, task.attempts) == ("ready", "auth_failure", 0)
    assert [(rests.key, rests.until) for rests in await shop.cooldowns.list()] == [
        ("provider:openai,account:team", None)
    ]


async def test_text_of_a_raised_error_is_read(shop: Queue) -> None:
    assert (await after(shop, RuntimeError("429 Too Many Requests"))).failure_reason == "rate_limit"


async def test_any_other_exception_is_a_crash(shop: Queue) -> None:
    task = await after(shop, KeyError(429))
    assert (task.failure_reason, task.result.data) == ("crash", None)


async def test_handler_can_submit_data_about_its_failure(shop: Queue) -> None:
    task = await after(shop, Fail("agent_error", "it did not work", data={"status": 429, "retry_after": 1800}))
    assert task.failure_reason == "rate_limit"
    assert 1_680 < task.available_at - shop.now() <= 1_800


async def test_unserialisable_failure_data_keeps_the_reason(shop: Queue) -> None:
    task = await after(shop, Fail("context_exceeded", "too long", data={"response": object()}, retry=False))
    assert (task.failure_reason, task.last_error) == ("context_exceeded", "too long")
