"""The transcript of a conversation with Claude and the results of its turns, stored as steps of the task."""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import Any, Self

import msgspec
from claude_agent_sdk import ResultMessage, SessionKey, SessionStore, SessionStoreEntry
from claude_agent_sdk.types import DeferredToolUse, SessionListSubkeysKey

from shiftwork.integrations import agent_run
from shiftwork.providers import prices
from shiftwork.worker.context import Context

CONTINUE = "Continue where you left off."


class Used(msgspec.Struct, frozen=True):
    """Tokens and cost used by models."""

    model: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0

    def plus(self, more: Used) -> Used:
        return Used(
            more.model or self.model,
            self.tokens_in + more.tokens_in,
            self.tokens_out + more.tokens_out,
            self.cost_usd + more.cost_usd,
        )

    def excess_over(self, known: Used) -> Used:
        """The part of this usage that exceeds the known usage, never negative."""
        return Used(
            self.model,
            max(0, self.tokens_in - known.tokens_in),
            max(0, self.tokens_out - known.tokens_out),
            max(0.0, self.cost_usd - known.cost_usd),
        )


class Transcript(SessionStore):
    """The conversation as mirrored by the SDK, and the results of its turns, in a log of steps."""

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self._log = agent_run.StepLog(ctx, name)
        self._entries: dict[str, list[SessionStoreEntry]] = {}
        self._used: dict[str, Used] = {}
        """By the id of a model's answer."""
        self._kept: set[str | None] = set()
        """The ids of entries."""
        self._answered: set[str] = set()
        """The ids of tool calls that have a result."""
        self.id = str(uuid.uuid4())
        self.result: ResultMessage | None = None
        """The result of the last finished turn."""

    @classmethod
    async def open(cls, ctx: Context, name: str) -> Self:
        session = cls(ctx, name)
        for entry in await session._log.read():
            if "result" in entry:
                session.result = _read_result(json.loads(entry["result"]))
                session._settle(session.result)
            else:
                session.id = entry["key"]["session_id"]
                entries = json.loads(entry["entries"])
                session._count(entries)
                session._keep(entry["key"], entries)
        return session

    @property
    def begun(self) -> bool:
        return bool(self._entries)

    def prompt(self, first: str) -> str | None:
        """The next prompt: the first one, or to continue; None to resume a deferred call."""
        if not self.begun:
            return first
        waiting = self.result and self.result.deferred_tool_use
        return None if waiting and waiting.id not in self._answered else CONTINUE

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Mirror a part of the transcript and book its usage. If this fails, the SDK retries it."""
        self._book(self._count(entries))
        # As text: a transcript may be nested deeper than a step, and contain characters that a step cannot.
        await self._log.append({"key": key, "entries": json.dumps(entries)})
        self._keep(key, entries)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        return self._entries.get(_flat(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The transcripts of subagents."""
        whole = f"{_flat(key)}/"
        return [each.removeprefix(whole) for each in self._entries if each.startswith(whole)]

    def _keep(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        kept = self._entries.setdefault(_flat(key), [])
        for entry in entries:
            if (known_as := entry.get("uuid")) is None or known_as not in self._kept:
                kept.append(entry)
            self._kept.add(known_as)
            for block in _blocks(entry):
                if block.get("type") == "tool_result":
                    self._answered.add(str(block.get("tool_use_id")))

    def _count(self, entries: list[SessionStoreEntry]) -> Used:
        """The usage that these entries add. An answer in several parts comes as several entries with the same usage."""
        added = Used()
        for entry in entries:
            message = entry.get("message")
            if isinstance(message, dict) and isinstance(message.get("usage"), dict):
                known = self._used.get(str(message.get("id")), Used())
                more = _of_message(message).excess_over(known)
                self._used[str(message.get("id"))] = known.plus(more)
                added = added.plus(more)
        return added

    async def finish(self, result: ResultMessage) -> None:
        """Store a turn's result, and book the usage that the program counts beyond the transcript."""
        self._book(self._settle(result))
        await self._log.append({"result": json.dumps(dataclasses.asdict(result))})
        self.result = result

    def _settle(self, result: ResultMessage) -> Used:
        """The usage that the program counts for the conversation beyond what is known; it is known from now on."""
        known = Used()
        for used in self._used.values():
            known = known.plus(used)
        more = _of_result(result).excess_over(known)
        self._used["settled"] = self._used.get("settled", Used()).plus(more)
        return more

    def _book(self, used: Used) -> None:
        if used.cost_usd or used.tokens_in or used.tokens_out:
            self._ctx.spent(used.cost_usd, used.tokens_in, used.tokens_out, used.model)


def _flat(key: SessionKey | SessionListSubkeysKey) -> str:
    """The key without the project, which is derived from the folder and so differs between machines."""
    return "/".join(part for part in (key["session_id"], str(key.get("subpath") or "")) if part)


def _blocks(entry: SessionStoreEntry) -> list[dict[str, Any]]:
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _of_message(message: dict[str, Any]) -> Used:
    used = {name: count for name, count in message["usage"].items() if isinstance(count, int)}
    cached = used.get("cache_read_input_tokens", 0)
    tokens_in = used.get("input_tokens", 0) + cached + used.get("cache_creation_input_tokens", 0)
    tokens_out = used.get("output_tokens", 0)
    model = message.get("model")
    named = model if isinstance(model, str) else None
    return Used(named, tokens_in, tokens_out, prices.cost_usd(named, tokens_in, tokens_out, cached=cached))


def _of_result(result: ResultMessage) -> Used:
    """The usage of all models since the conversation began."""
    by_model = result.model_usage or {}
    tokens_in = sum(
        each["inputTokens"] + each["cacheReadInputTokens"] + each["cacheCreationInputTokens"]
        for each in by_model.values()
    )
    tokens_out = sum(each["outputTokens"] for each in by_model.values())
    model = next(iter(by_model)) if len(by_model) == 1 else None
    return Used(model, tokens_in, tokens_out, result.total_cost_usd or 0.0)


def _read_result(stored: dict[str, Any]) -> ResultMessage:
    """Decode a result, perhaps of another version of the SDK with more or fewer fields."""
    known = {field.name for field in dataclasses.fields(ResultMessage)}
    result = ResultMessage(**{name: value for name, value in stored.items() if name in known})
    if (waiting := stored.get("deferred_tool_use")) is not None:
        result.deferred_tool_use = DeferredToolUse(**waiting)
    return result
