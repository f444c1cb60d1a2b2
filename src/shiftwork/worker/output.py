"""Reads what an agent prints: plain text, one JSON object, or lines of JSON events as coding agents write them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.model.bounds import MAX_NAME

Format = Literal["auto", "text", "json", "stream-json"]

MAX_BYTES = 16 * 1024 * 1024
"""Of a text, an object or one line. More is not kept: a result may be half as long by default."""

MAX_USD = 1e9
MAX_NUMBER = 1e13
"""Of facts about a provider: times since 1970 in milliseconds are less."""

MAX_INPUT_LENGTH = 1_000
"""Of what is told about a tool's call, in characters."""


class AgentMessage(NamedTuple):
    """Something to tell while the agent works: a kind of message, and its words."""

    kind: Literal["text", "tool_call", "error"]
    text: str
    data: dict[str, Any] | None = None


class Spent(NamedTuple):
    """What a run has used so far."""

    cost_usd: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0

    def beyond(self, before: Spent) -> Spent:
        """What has come since; a sum that has become less adds nothing."""
        return Spent(
            max(0.0, self.cost_usd - before.cost_usd),
            max(0, self.tokens_in - before.tokens_in),
            max(0, self.tokens_out - before.tokens_out),
        )

    def plus(self, more: Spent) -> Spent:
        return Spent(self.cost_usd + more.cost_usd, self.tokens_in + more.tokens_in, self.tokens_out + more.tokens_out)


class Final(NamedTuple):
    """What the agent itself says it came to."""

    text: str | None = None
    data: Any = None
    failed: bool = False
    reason: str | None = None
    facts: dict[str, Any] | None = None
    """The provider's answer as the agent reports it: status, headers, error type and reset."""


class ParsedEvent(NamedTuple):
    """What one event says."""

    said: tuple[AgentMessage, ...] = ()
    session_id: str | None = None
    cost_usd: float | None = None
    """Of the run so far."""
    message_id: str | None = None
    """Of the message whose tokens these are; None where they are those of the whole run."""
    tokens: tuple[int, int] | None = None
    final: Final | None = None
    facts: dict[str, Any] | None = None
    """About the provider, known before the end."""


def read_event(event: dict[str, Any]) -> ParsedEvent:
    """What a line of JSON says; one of a kind that is not known says at most which session it is of."""
    read = _READERS.get(str(event.get("type")), _nothing)
    seen = read(event)
    return seen._replace(session_id=_name(event.get("session_id")) or _name(event.get("thread_id")))


def read_object(found: dict[str, Any]) -> ParsedEvent:
    """What a program says that prints one object: the event of an agent's result, or data of its own."""
    seen = read_event(found)
    if seen.final is not None:
        return seen
    failed = found.get("is_error") is True
    facts = _problem(found)[1] if failed else None
    final = Final(_text(found.get("text")), found, failed=failed, reason=_name(found.get("reason")), facts=facts)
    return seen._replace(cost_usd=_cost(found), tokens=_tokens(found.get("usage")), final=final)


def _nothing(_event: dict[str, Any]) -> ParsedEvent:
    return ParsedEvent()


def _assistant(event: dict[str, Any]) -> ParsedEvent:
    message = _object(event.get("message"))
    stated = [_block(block) for block in _objects(message.get("content"))]
    id_ = _name(message.get("id"))
    tokens = _tokens(message.get("usage")) if id_ is not None else None
    kind = _name(event.get("error"))
    facts = {"error": None if kind is None else {"type": kind}}  # an answer after an error means that it has passed
    return ParsedEvent(tuple(each for each in stated if each is not None), message_id=id_, tokens=tokens, facts=facts)


def _block(block: dict[str, Any]) -> AgentMessage | None:
    if block.get("type") == "tool_use":
        given = msgspec.json.encode(block.get("input")).decode()
        return AgentMessage("tool_call", _text(block.get("name")) or "a tool", {"input": given[:MAX_INPUT_LENGTH]})
    words = _text(block.get("text")) if block.get("type") == "text" else None
    return AgentMessage("text", words) if words else None


def _user(event: dict[str, Any]) -> ParsedEvent:
    """What tools answered; only their errors are told."""
    blocks = _objects(_object(event.get("message")).get("content"))
    wrong = [block for block in blocks if block.get("type") == "tool_result" and block.get("is_error") is True]
    return ParsedEvent(tuple(AgentMessage("error", _words(block.get("content"))) for block in wrong))


def _rate_limit_event(event: dict[str, Any]) -> ParsedEvent:
    """The state of a subscription's window; sent with successful turns, too."""
    info = _object(event.get("rate_limit_info"))
    known = {name: info[name] for name in _WINDOW if _is_plain(info.get(name))}
    spare = info.get("isUsingOverage") is True or info.get("overageStatus") == "allowed"
    return ParsedEvent(facts={"rate_limit_info": {**known, "status": "allowed"} if spare else known})


def _result(event: dict[str, Any]) -> ParsedEvent:
    failed = event.get("is_error") is True or str(event.get("subtype", "")).startswith("error")
    failed |= event.get("status") == "error"
    why, facts = _problem(event)
    text = _text(event.get("result")) or ((why or _text(event.get("subtype"))) if failed else None)
    reason = _name(event.get("reason"))
    final = Final(text, event.get("structured_output"), failed, reason, facts if failed else None)
    return ParsedEvent(cost_usd=_cost(event), tokens=_tokens(event.get("usage")), final=final)


def _item(event: dict[str, Any]) -> ParsedEvent:
    item = _object(event.get("item"))
    kind = str(item.get("type"))
    if kind == "agent_message":
        return ParsedEvent((AgentMessage("text", _words(item.get("text"))),))
    if kind == "error":
        return ParsedEvent((AgentMessage("error", _words(item.get("message"))),))
    if kind in {"command_execution", "file_change", "mcp_tool_call", "web_search"}:
        name = _text(item.get("command")) or _text(item.get("tool")) or _text(item.get("query")) or kind
        return ParsedEvent((AgentMessage("tool_call", name, {"kind": kind, "status": _name(item.get("status"))}),))
    return ParsedEvent()


def _turn_completed(event: dict[str, Any]) -> ParsedEvent:
    return ParsedEvent(tokens=_tokens(event.get("usage")), final=Final())


def _turn_failed(event: dict[str, Any]) -> ParsedEvent:
    words, facts = _problem(event)
    return ParsedEvent((AgentMessage("error", words),), final=Final(words, failed=True, facts=facts))


def _problem(event: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The words of an error event, and the provider's answer, in the places where each agent puts it."""
    error = _object(event.get("error"))
    data = _object(error.get("data"))
    words = _words(error.get("message") or data.get("message") or event.get("message"))
    facts: dict[str, Any] = {}
    for record, name in ((event, "api_error_status"), (event, "status_code"), (error, "code"), (data, "statusCode")):
        if isinstance(record.get(name), int) and record[name] in _HTTP:
            facts["status"] = record[name]
    if (kind := _name(error.get("type")) or _name(error.get("code"))) is not None:
        facts["error"] = {"type": kind}
    for name in ("resets_at", "resets_in_seconds"):
        if _number(error.get(name)):
            facts[name] = error[name]
    headers = _object(data.get("responseHeaders")) or _object(event.get("headers"))
    if limits := {name: headers[name] for name in headers if _is_about_limits(name, headers[name])}:
        facts["headers"] = limits
    return words, facts or None


def _is_about_limits(name: str, value: Any) -> bool:
    about = name.lower().startswith("retry-after") or "ratelimit" in name.lower()
    return about and _name(name) is not None and _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether it is a short text or a number that any store can hold."""
    return _name(value) is not None or _number(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


_HTTP = range(400, 600)
_WINDOW = ("status", "resetsAt", "rateLimitType", "utilization")
_READERS: dict[str, Callable[[dict[str, Any]], ParsedEvent]] = {
    "assistant": _assistant,
    "user": _user,
    "rate_limit_event": _rate_limit_event,
    "result": _result,
    "item.completed": _item,
    "turn.completed": _turn_completed,
    "turn.failed": _turn_failed,
    "error": _turn_failed,
}

EVENTS = frozenset({*_READERS, "system", "thread.started", "turn.started", "item.started", "item.updated"})
"""What lines of events begin with; an object of another type is a program's own data."""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _words(value: Any) -> str:
    """Text, or the text of a list of blocks, or the value as it is."""
    if isinstance(value, list):
        return "\n".join(_text(block.get("text")) or "" for block in _objects(value)).strip()
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _name(value: Any) -> str | None:
    usable = isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()
    return value if usable else None


def _cost(event: dict[str, Any]) -> float | None:
    value = event.get("total_cost_usd", event.get("cost_usd"))
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_USD
    return float(value) if usable else None  # type: ignore[arg-type]  # it is a number then


def _tokens(usage: Any) -> tuple[int, int] | None:
    """Read and written; what was read from a cache was read."""
    if not isinstance(usage, dict):
        return None
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(_count(usage.get(name)) for name in read), _count(usage.get("output_tokens"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**12 else 0


class Transcript:
    """What a run has printed so far, in bounded memory."""

    def __init__(self, format: Format) -> None:  # the option's word
        self.session_id: str | None = None
        self.cut = False
        """The output was longer than is kept. An overlong line among others is passed over."""
        self._format = format
        self._undecided = format == "auto"
        self._in_lines = format == "stream-json"
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()
        """The whole output; of lines the one that has no end yet."""
        self._overlong = False
        self._cost = 0.0
        self._tokens: dict[str | None, tuple[int, int]] = {}
        self._final: Final | None = None
        self._facts: dict[str, Any] = {}
        self._last_words: str | None = None

    def feed(self, data: bytes) -> list[AgentMessage]:
        """Take in what was printed; what of it is to be told."""
        if self._undecided and b"\n" in data:
            data, self._kept = bytes(self._kept) + data, bytearray()
            self._decide(data)
        if self._in_lines:
            return list(self._read_lines(data))
        self._keep(data)
        return [] if self._undecided or self._format == "json" else [AgentMessage("text", self._decoder.decode(data))]

    def _decide(self, data: bytes) -> None:
        """An output whose first line is an event has lines of events."""
        first = data.lstrip().partition(b"\n")[0]
        if first:
            found = _decode(first)
            self._undecided = False
            self._in_lines = isinstance(found, dict) and found.get("type") in EVENTS

    def _keep(self, data: bytes) -> None:
        room = MAX_BYTES - len(self._kept)
        self._kept += data[:room]
        self._overlong |= len(data) > room
        self.cut |= self._overlong and not self._in_lines

    def _read_lines(self, data: bytes) -> Iterator[AgentMessage]:
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._keep(end)
            line, overlong = bytes(self._kept), self._overlong
            self._kept, self._overlong = bytearray(), False
            if not overlong:
                yield from self._read_line(line)
        self._keep(rest)

    def _read_line(self, line: bytes) -> Iterator[AgentMessage]:
        event = _decode(line)
        if isinstance(event, dict):
            yield from self._record(read_event(event))
        elif line.strip():
            yield AgentMessage("text", line.decode("utf-8", "replace"))

    def _record(self, seen: ParsedEvent) -> tuple[AgentMessage, ...]:
        self.session_id = seen.session_id or self.session_id
        self._cost = max(self._cost, seen.cost_usd or 0.0)
        if seen.tokens is not None:
            self._tokens[seen.message_id] = seen.tokens
        self._last_words = next(
            (message.text for message in reversed(seen.said) if message.kind == "text"), self._last_words
        )
        self._final = seen.final or self._final
        self._facts |= seen.facts or {}
        return tuple(
            message._replace(text=message.text + "\n") if message.kind == "text" else message for message in seen.said
        )

    @property
    def spent(self) -> Spent:
        """What is known of the run's use; the total of the run once there is one."""
        counted = [self._tokens[None]] if None in self._tokens else list(self._tokens.values())
        return Spent(self._cost, sum(read for read, _ in counted), sum(written for _, written in counted))

    @property
    def facts(self) -> dict[str, Any]:
        """The provider's last answer as far as it is known; the final event counts most."""
        known = self._facts | ((self._final.facts if self._final else None) or {})
        return {name: value for name, value in known.items() if value is not None}

    def end(self) -> Final | None:
        """What the whole output came to; None where it does not hold what its format promises."""
        if self._in_lines:
            list(self._read_lines(b"\n"))
            return None if self._final is None else self._final._replace(text=self._final.text or self._last_words)
        if self._format != "text":
            self._read_whole(_decode(bytes(self._kept)))
        if self._final is not None or self._format == "json":
            return self._final
        return Final(self._kept.decode("utf-8", "replace").rstrip("\n"))

    def _read_whole(self, found: Any) -> None:
        """One object, or all events in one list."""
        if isinstance(found, dict):
            self._record(read_object(found))
        for event in _objects(found):
            self._record(read_event(event))


def _decode(text: bytes) -> Any:
    """JSON, or None."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
