"""Reads what an agent prints: plain text, one JSON object, or lines of JSON events as coding agents write them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.model.bounds import MAX_NAME
from shiftwork.providers.limit_signal import WindowState

Format = Literal["auto", "text", "json", "stream-json"]

MAX_BYTES = 16 * 1024 * 1024
"""The longest text, object or line that is kept; by default, a result may be half as long."""

MAX_USD = 1e9
MAX_NUMBER = 1e13
"""The largest number kept from a provider's answer: more than the current time in milliseconds."""

MAX_INPUT_LENGTH = 1_000
"""Maximum length of a tool call's description, in characters."""


class AgentMessage(NamedTuple):
    """A message of the running agent."""

    kind: Literal["text", "tool_call", "error"]
    text: str
    data: dict[str, Any] | None = None
    in_parts: bool = False
    """Whether this is one of several parts of the message."""


class RunUsage(NamedTuple):
    """The usage of a run so far."""

    cost_usd: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """The cached part of `tokens_in`."""

    def since(self, before: RunUsage) -> RunUsage:
        """The usage since then; an amount that has decreased counts as 0."""
        return RunUsage(
            max(0.0, self.cost_usd - before.cost_usd),
            max(0, self.tokens_in - before.tokens_in),
            max(0, self.tokens_out - before.tokens_out),
            max(0, self.tokens_cached - before.tokens_cached),
        )

    def plus(self, more: RunUsage) -> RunUsage:
        return RunUsage(
            self.cost_usd + more.cost_usd,
            self.tokens_in + more.tokens_in,
            self.tokens_out + more.tokens_out,
            self.tokens_cached + more.tokens_cached,
        )


class Tokens(NamedTuple):
    """Tokens of one or several answers."""

    read: int
    written: int
    cached: int = 0
    """The cached part of `read`."""


class Final(NamedTuple):
    """The agent's own result."""

    text: str | None = None
    data: Any = None
    failed: bool = False
    reason: str | None = None
    facts: dict[str, Any] | None = None
    """The provider's answer as the agent reports it: status, headers, error type and reset."""


class ParsedEvent(NamedTuple):
    """The content of one event."""

    messages: tuple[AgentMessage, ...] = ()
    session_id: str | None = None
    cost_usd: float | None = None
    """The cost of the run so far."""
    message_id: str | None = None
    """The message that used these tokens; None if they are the total of the run."""
    part_cost_usd: float | None = None
    """The cost of one part of the run, identified by `part_id`."""
    part_id: str | None = None
    tokens: Tokens | None = None
    of_session: bool = False
    """Whether the tokens are the total of the session, including its earlier runs."""
    model: str | None = None
    """The model that answered."""
    final: Final | None = None
    facts: dict[str, Any] | None = None
    """Facts about the provider, known before the end of the run."""
    windows: tuple[WindowState, ...] = ()
    """The account's windows, if the agent reports their use."""


def read_event(event: dict[str, Any]) -> ParsedEvent:
    """Parse a line of JSON; an event of an unknown type yields at most its session."""
    read = _READERS.get(str(event.get("type")), _nothing)
    names = (event.get(name) for name in ("session_id", "thread_id", "sessionID"))
    return read(event)._replace(session_id=next(filter(None, map(_name, names)), None))


def read_object(found: dict[str, Any]) -> ParsedEvent:
    """Parse the output of a program that prints one object: an agent's result event, or data of its own."""
    event = read_event(found)
    if event.final is not None:
        return event
    failed = found.get("is_error") is True
    facts = _problem(found)[1] if failed else None
    final = Final(_text(found.get("text")), found, failed=failed, reason=_name(found.get("reason")), facts=facts)
    return event._replace(cost_usd=_cost(found), tokens=_tokens(found.get("usage")), final=final)


def _nothing(_event: dict[str, Any]) -> ParsedEvent:
    return ParsedEvent()


def _assistant(event: dict[str, Any]) -> ParsedEvent:
    message = _object(event.get("message"))
    blocks = [_block(block) for block in _objects(message.get("content"))]
    id_ = _name(message.get("id"))
    tokens = _tokens(message.get("usage")) if id_ is not None else None
    kind = _name(event.get("error"))
    facts = {"error": None if kind is None else {"type": kind}}  # an answer after an error: it was overcome
    messages = tuple(each for each in blocks if each is not None)
    return ParsedEvent(messages, message_id=id_, tokens=tokens, facts=facts, model=_model(message.get("model")))


def _model(value: Any) -> str | None:
    """Claude Code writes `<synthetic>` when it answers instead of a model."""
    name = _name(value)
    return None if name is None or name.startswith("<") else name


def _init(event: dict[str, Any]) -> ParsedEvent:
    return ParsedEvent(model=_model(event.get("model")))


def _call(name: Any, given: Any, **more: Any) -> AgentMessage:
    written = msgspec.json.encode(given).decode()
    return AgentMessage("tool_call", _text(name) or "a tool", {"input": written[:MAX_INPUT_LENGTH], **more})


def _block(block: dict[str, Any]) -> AgentMessage | None:
    if block.get("type") == "tool_use":
        return _call(block.get("name"), block.get("input"))
    words = _text(block.get("text")) if block.get("type") == "text" else None
    return AgentMessage("text", words) if words else None


def _user(event: dict[str, Any]) -> ParsedEvent:
    """Results of tools, of which only errors are reported."""
    blocks = _objects(_object(event.get("message")).get("content"))
    wrong = [block for block in blocks if block.get("type") == "tool_result" and block.get("is_error") is True]
    return ParsedEvent(tuple(AgentMessage("error", _words(block.get("content"))) for block in wrong))


def _rate_limit_event(event: dict[str, Any]) -> ParsedEvent:
    """The state of a subscription's window; sent with successful turns, too."""
    info = _object(event.get("rate_limit_info"))
    known = {name: info[name] for name in _WINDOW if _is_plain(info.get(name))}
    spare = info.get("isUsingOverage") is True or info.get("overageStatus") == "allowed"
    return ParsedEvent(
        facts={"rate_limit_info": {**known, "status": "allowed"} if spare else known},
        windows=() if spare else tuple(_windows(info)),
    )


def _windows(info: dict[str, Any]) -> Iterator[WindowState]:
    """All windows in the event; older versions have only one."""
    several: list[tuple[Any, Any]] = list(_object(info.get("unifiedWindows")).items())
    for name, state in several or [(info.get("rateLimitType"), info)]:
        known, status = _object(state), _object(state).get("status")
        if (window := _name(name)) is None or status not in {"allowed", "allowed_warning", "rejected"}:
            continue
        used: Any = known.get("utilization")
        at: Any = known.get("resetsAt")
        yield WindowState(
            window,
            status=status,
            utilization=min(float(used), 1.0) if _number(used) else None,
            resets_at=float(at) if _number(at) else None,
        )


def _result(event: dict[str, Any]) -> ParsedEvent:
    failed = event.get("is_error") is True or str(event.get("subtype", "")).startswith("error")
    failed |= event.get("status") == "error"
    why, facts = _problem(event)
    text = _text(event.get("result")) or ((why or _text(event.get("subtype"))) if failed else None)
    reason = _name(event.get("reason"))
    final = Final(text, event.get("structured_output"), failed, reason, facts if failed else None)
    stats = _object(event.get("stats"))  # Gemini CLI
    tokens = _tokens(event.get("usage") or stats or None)
    models = [_model(name) for name in _object(event.get("modelUsage")) or _object(stats.get("models"))]
    model = models[0] if len(models) == 1 else None
    parsed = ParsedEvent(tokens=tokens, final=final, model=model)
    since = event.get("model_usage_since_last_result")
    if not isinstance(since, dict):
        return parsed._replace(cost_usd=_cost(event))
    # Claude Code's total is that of the session, including earlier runs
    costs = [_cost({"cost_usd": each.get("costUSD")}) or 0.0 for each in _objects(list(since.values()))]
    return parsed._replace(part_cost_usd=sum(costs), part_id=_name(event.get("uuid")))


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


def _message(event: dict[str, Any]) -> ParsedEvent:
    """Gemini CLI: the prompt, or a part of an answer."""
    words = event.get("content")
    if event.get("role") != "assistant" or not isinstance(words, str) or not words:
        return ParsedEvent()
    return ParsedEvent((AgentMessage("text", words, in_parts=event.get("delta") is True),))


def _tool_use(event: dict[str, Any]) -> ParsedEvent:
    """Gemini CLI sends it before the call, OpenCode after it."""
    part = _object(event.get("part"))
    if not part:
        return ParsedEvent((_call(event.get("tool_name"), event.get("parameters")),))
    state = _object(part.get("state"))
    messages = [_call(part.get("tool"), state.get("input"), status=_name(state.get("status")))]
    if state.get("status") == "error":
        messages.append(AgentMessage("error", _words(state.get("error"))))
    return ParsedEvent(tuple(messages))


def _tool_result(event: dict[str, Any]) -> ParsedEvent:
    """Gemini CLI: only errors are reported."""
    if event.get("status") != "error":
        return ParsedEvent()
    error = _object(event.get("error"))
    return ParsedEvent((AgentMessage("error", _words(error.get("message") or event.get("output"))),))


def _part_text(event: dict[str, Any]) -> ParsedEvent:
    """OpenCode."""
    words = _text(_object(event.get("part")).get("text"))
    return ParsedEvent((AgentMessage("text", words),) if words else ())


def _step_finish(event: dict[str, Any]) -> ParsedEvent:
    """OpenCode: the end of one answer of the model. No event marks the last one."""
    part = _object(event.get("part"))
    counted = _object(part.get("tokens"))
    cache = _object(counted.get("cache"))
    read = _count(counted.get("input")) + _count(cache.get("read")) + _count(cache.get("write"))
    tokens = Tokens(read, _count(counted.get("output")) + _count(counted.get("reasoning")))
    cost = _cost({"cost_usd": part.get("cost")})
    final = None if part.get("reason") == "tool-calls" else Final()
    id_ = _name(part.get("id"))
    return ParsedEvent(message_id=id_, tokens=tokens, part_cost_usd=cost, part_id=id_, final=final)


def _turn_completed(event: dict[str, Any]) -> ParsedEvent:
    return ParsedEvent(tokens=_tokens(event.get("usage")), of_session=True, final=Final())


def _turn_failed(event: dict[str, Any]) -> ParsedEvent:
    words, facts = _problem(event)
    return ParsedEvent((AgentMessage("error", words),), final=Final(words, failed=True, facts=facts))


def _problem(event: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The text of an error event and the provider's answer, wherever each agent puts them."""
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
    """Whether it is a short text or a number that every store can hold."""
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
    "system": _init,
    "init": _init,
    "message": _message,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "text": _part_text,
    "step_finish": _step_finish,
}
_LATER = frozenset({"message", "tool_use", "tool_result", "text", "step_finish"})
"""Types that never come first in an agent's output, but are likely names in a program's own data."""

EVENTS = (frozenset(_READERS) - _LATER) | {
    *("thread.started", "turn.started", "item.started", "item.updated"),  # Codex
    "step_start",  # OpenCode
}
"""Types of an agent's first event; an object of any other type is a program's own data."""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _words(value: Any) -> str:
    """Text as it is, the text of a list of blocks, or any other value unchanged."""
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


def _tokens(usage: Any) -> Tokens | None:
    """Tokens read and written. Cached ones count as read; Codex and Gemini CLI include them in the input."""
    if not isinstance(usage, dict):
        return None
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    cached = _count(usage.get("cached_input_tokens")) or _count(usage.get("cached"))
    return Tokens(sum(_count(usage.get(name)) for name in read), _count(usage.get("output_tokens")), cached)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**12 else 0


class Transcript:
    """The output of a run so far, in bounded memory."""

    def __init__(self, format: Format, resumed: RunUsage | None = None) -> None:  # the option's word
        """`resumed` is the usage already booked for a resumed session."""
        self._resumed = resumed or RunUsage()
        self.session_id: str | None = None
        self.cut = False
        """Whether the output was too long to keep. An overlong line among others is skipped."""
        self._format = format
        self._undecided = format == "auto"
        self._in_lines = format == "stream-json"
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()
        """The whole output; with an output of lines, the unfinished line."""
        self._overlong = False
        self.model: str | None = None
        """The last model that answered, if the agent names it."""
        self.windows: dict[str, WindowState] = {}
        self._cost = 0.0
        self._costs: dict[str | None, float] = {}
        self._tokens: dict[str | None, Tokens] = {}
        self._final: Final | None = None
        self._facts: dict[str, Any] = {}
        self._last_text: str | None = None
        self._last_in_parts = False

    def feed(self, data: bytes) -> list[AgentMessage]:
        """Parse a piece of output; returns the messages to report."""
        if self._undecided and b"\n" in data:
            data, self._kept = bytes(self._kept) + data, bytearray()
            self._decide(data)
        if self._in_lines:
            return list(self._read_lines(data))
        self._keep(data)
        return [] if self._undecided or self._format == "json" else [AgentMessage("text", self._decoder.decode(data))]

    def _decide(self, data: bytes) -> None:
        """Decide the format by the first line: if it is an event, the output is lines of events."""
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
            yield from self.record(read_event(event))
        elif line.strip():
            yield AgentMessage("text", line.decode("utf-8", "replace"))

    def record(self, event: ParsedEvent) -> tuple[AgentMessage, ...]:
        """Record an event; returns the messages to report."""
        self.session_id = event.session_id or self.session_id
        self._cost = max(self._cost, event.cost_usd or 0.0)
        if event.tokens is not None:
            used = event.tokens
            if event.of_session:
                before = self._resumed
                used = Tokens(
                    max(0, used.read - before.tokens_in), max(0, used.written - before.tokens_out), used.cached
                )
            self._tokens[event.message_id] = used._replace(cached=min(used.cached, used.read))
        if event.part_cost_usd is not None:
            self._costs[event.part_id] = event.part_cost_usd
        self.model = event.model or self.model
        self._final = event.final or self._final
        self._facts |= event.facts or {}
        self.windows |= {each.window: each for each in event.windows}
        return tuple(self._note(message) for message in event.messages)

    def _note(self, message: AgentMessage) -> AgentMessage:
        """Keep the last message, which is the result if no event has one; ends a whole message with a newline."""
        if message.kind != "text":
            self._last_in_parts = False
            return message
        before = (self._last_text or "") if message.in_parts and self._last_in_parts else ""
        self._last_text = (before + message.text)[-MAX_BYTES:]
        self._last_in_parts = message.in_parts
        return message if message.in_parts else message._replace(text=message.text + "\n")

    @property
    def spent(self) -> RunUsage:
        """The known usage of the run; the run's own total once there is one."""
        counted = [self._tokens[None]] if None in self._tokens else list(self._tokens.values())
        cost = max(self._cost, sum(self._costs.values()))
        return RunUsage(cost, *(sum(each) for each in zip(*counted, strict=True))) if counted else RunUsage(cost)

    @property
    def reports_cost(self) -> bool:
        """Whether the agent reports its cost, now or at its end; agents that count each answer do."""
        return bool(self._cost or self._costs) or any(id_ is not None for id_ in self._tokens)

    @property
    def facts(self) -> dict[str, Any]:
        """The known facts of the provider's last answer; the final event takes precedence."""
        known = self._facts | ((self._final.facts if self._final else None) or {})
        return {name: value for name, value in known.items() if value is not None}

    def end(self) -> Final | None:
        """The result in the whole output; None if the output does not match its format."""
        if self._in_lines:
            list(self._read_lines(b"\n"))
            return None if self._final is None else self._final._replace(text=self._final.text or self._last_text)
        if self._format != "text":
            self._read_whole(_decode(bytes(self._kept)))
        if self._final is not None or self._format == "json":
            return self._final
        return Final(self._kept.decode("utf-8", "replace").rstrip("\n"))

    def _read_whole(self, found: Any) -> None:
        """One object, or all events in one list."""
        if isinstance(found, dict):
            self.record(read_object(found))
        for event in _objects(found):
            self.record(read_event(event))


def _decode(text: bytes) -> Any:
    """Decode JSON; None if it is invalid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
