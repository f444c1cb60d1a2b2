"""Output of agents: plain text, one object, and the events of two common coding agents."""

import json
from typing import Any

import pytest

from shiftwork.worker import output
from shiftwork.worker.output import AgentMessage, Final, Format, RunUsage, Transcript, read_event

CLAUDE: list[dict[str, Any]] = [
    {"type": "system", "subtype": "init", "session_id": "S", "tools": []},
    {
        "type": "assistant",
        "session_id": "S",
        "message": {
            "id": "m1",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."}],
            "usage": {"input_tokens": 3, "cache_creation_input_tokens": 20, "output_tokens": 1},
        },
    },
    {
        "type": "assistant",
        "session_id": "S",
        "message": {
            "id": "m1",
            "content": [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}],
            "usage": {"input_tokens": 3, "cache_creation_input_tokens": 20, "output_tokens": 4},
        },
    },
    {
        "type": "user",
        "session_id": "S",
        "message": {"content": [{"type": "tool_result", "is_error": True, "content": "no such file"}]},
    },
]
CLAUDE_END = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "All done.",
    "session_id": "S",
    "total_cost_usd": 0.125,
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 50},
}
CODEX: list[dict[str, Any]] = [
    {"type": "thread.started", "thread_id": "T"},
    {"type": "turn.started"},
    {"type": "item.started", "item": {"type": "command_execution", "command": "ls"}},
    {"type": "item.completed", "item": {"type": "command_execution", "command": "ls", "status": "completed"}},
    {"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
    {"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}},
    {"type": "turn.completed", "usage": {"input_tokens": 100, "cached_input_tokens": 80, "output_tokens": 9}},
]


def lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def heard(transcript: Transcript, data: bytes, step: int = 7) -> list[AgentMessage]:
    """Return the reported messages of an output that arrives in small pieces."""
    return [message for at in range(0, len(data), step) for message in transcript.feed(data[at : at + step])]


@pytest.mark.parametrize("format_", ["auto", "stream-json"])
def test_claude_events_are_parsed_with_their_result(format_: Format) -> None:
    transcript = Transcript(format_)
    assert heard(transcript, lines(CLAUDE)) == [
        AgentMessage("text", "I look.\n"),
        AgentMessage("tool_call", "Bash", {"input": '{"command":"ls"}'}),
        AgentMessage("error", "no such file"),
    ]
    assert (transcript.session_id, transcript.spent) == ("S", RunUsage(0.0, 23, 4))
    transcript.feed(lines([CLAUDE_END]))
    assert transcript.end() == Final("All done.")
    assert transcript.spent == RunUsage(0.125, 110, 50)


def test_codex_events_end_with_the_last_message() -> None:
    transcript = Transcript("auto")
    assert heard(transcript, lines(CODEX)) == [
        AgentMessage("tool_call", "ls", {"kind": "command_execution", "status": "completed"}),
        AgentMessage("text", "Done.\n"),
    ]
    assert transcript.end() == Final("Done.")
    assert (transcript.session_id, transcript.spent) == ("T", RunUsage(0.0, 100, 9, 80))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "result", "is_error": True, "result": "it broke"}, "it broke"),
        ({"type": "result", "subtype": "error_max_turns"}, "error_max_turns"),
        ({"type": "turn.failed", "error": {"message": "no credit"}}, "no credit"),
        ({"type": "error", "message": "stream ended"}, "stream ended"),
    ],
)
def test_agent_failure_event_is_recognised(event: dict[str, Any], text: str) -> None:
    assert read_event(event).final == Final(text, failed=True)


def test_agent_can_report_its_own_failure_reason() -> None:
    final = read_event({"type": "result", "is_error": True, "reason": "context_exceeded"}).final
    assert final is not None
    assert final.reason == "context_exceeded"


def test_structured_output_becomes_result_data() -> None:
    final = read_event({**CLAUDE_END, "structured_output": {"n": 1}}).final
    assert final == Final("All done.", {"n": 1})


@pytest.mark.parametrize("format_", ["auto", "json"])
@pytest.mark.parametrize("indent", [None, 2])
def test_single_object_is_data_and_can_report_its_cost(format_: Format, indent: int | None) -> None:
    found = {"text": "fine", "type": "report", "cost_usd": 2, "session_id": "S", "usage": {"output_tokens": 3}}
    transcript = Transcript(format_)
    heard(transcript, json.dumps(found, indent=indent).encode() + b"\n")
    assert transcript.end() == Final("fine", found)
    assert (transcript.session_id, transcript.spent) == ("S", RunUsage(2.0, 0, 3))


@pytest.mark.parametrize("format_", ["auto", "json"])
def test_single_object_can_be_a_result_or_an_event_list(format_: Format) -> None:
    for text in (json.dumps(CLAUDE_END), json.dumps([*CLAUDE, CLAUDE_END])):
        transcript = Transcript(format_)
        transcript.feed(text.encode())
        assert transcript.end() == Final("All done.")
        assert (transcript.session_id, transcript.spent.cost_usd) == ("S", 0.125)


@pytest.mark.parametrize("text", ["hello\n", "{not json}\n", "42\n", "[1, 2]\n", "", "\n\n", '{"a": 1} and more\n'])
def test_unrecognised_output_is_treated_as_text(text: str) -> None:
    transcript = Transcript("auto")
    heard(transcript, text.encode())
    assert transcript.end() == Final(text.rstrip("\n"))


def test_text_is_streamed_with_invalid_bytes_replaced() -> None:
    transcript = Transcript("text")
    text = "".join(stated.text for stated in heard(transcript, "grüße \U0001f600".encode() + b"\xff\n", step=1))
    assert text == "grüße \U0001f600�\n"
    assert transcript.end() == Final("grüße \U0001f600�")


@pytest.mark.parametrize(("format_", "text"), [("json", "hello"), ("json", "[1]"), ("stream-json", "hello")])
def test_missing_promised_format_gives_no_result(format_: Format, text: str) -> None:
    transcript = Transcript(format_)
    transcript.feed(text.encode())
    assert transcript.end() is None


def test_lines_between_events_are_reported_as_text() -> None:
    transcript = Transcript("stream-json")
    assert transcript.feed(b"warning: old\n\n") == [AgentMessage("text", "warning: old")]


def test_transcript_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_BYTES", 100)
    for pieces, cut in ((1, False), (2, True)):
        text = Transcript("text")
        for _ in range(pieces):
            text.feed(b"x" * 60)
        assert text.cut is cut
    events = Transcript("stream-json")
    heard(events, json.dumps({"type": "assistant", "much": "x" * 500}).encode() + b"\n")
    heard(events, lines([{"type": "result", "result": "short"}]))
    assert events.end() == Final("short")
    assert not events.cut


@pytest.mark.parametrize(
    "event",
    [
        {"type": ["result"]},
        {"type": "assistant", "message": "text"},
        {"type": "assistant", "message": {"content": "text", "usage": []}},
        {"type": "assistant", "message": {"id": 7, "content": [7, {"type": "text", "text": 7}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "is_error": True, "content": [{"n": 1}]}]}},
        {"type": "result", "total_cost_usd": True, "usage": {"input_tokens": -1, "output_tokens": "9"}},
        {"type": "item.completed", "item": None},
        {"type": "turn.failed", "error": "text"},
        {"session_id": 7, "thread_id": ""},
        {"session_id": "x" * 256},
        {"session_id": "a\nb"},
    ],
)
def test_malformed_events_are_ignored(event: dict[str, Any]) -> None:
    seen = read_event(event)
    assert (seen.session_id, seen.cost_usd or 0.0) == (None, 0.0)
    assert not any(seen.tokens or ())


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), "1", None, -1, 10**400])
def test_invalid_cost_counts_as_zero(cost: Any) -> None:
    assert not read_event({"type": "result", "total_cost_usd": cost}).cost_usd


def test_decreasing_total_is_not_charged_again() -> None:
    booked = RunUsage(1.0, 10, 5)
    more = RunUsage(0.5, 12, 5).since(booked)
    assert more == RunUsage(0.0, 2, 0)
    assert RunUsage(1.0, 13, 5).since(booked.plus(more)) == RunUsage(0.0, 1, 0)


@pytest.mark.parametrize("value", [10**400, -1, 1e300, float("inf"), True, None, [], "x" * 300, "a\0b", {"deep": 1}])
def test_provider_facts_invalid_for_databases_are_left_out(value: Any) -> None:
    transcript = Transcript("stream-json")
    info = {"status": value, "resetsAt": value, "utilization": value}
    headers = {"retry-after": value, "x-ratelimit-reset": value}
    data = {"message": "no", "statusCode": value, "responseHeaders": headers}
    events = [
        {"type": "rate_limit_event", "rate_limit_info": info},
        {"type": "error", "error": {"type": value, "resets_at": value, "data": data}},
    ]
    for event in events:
        transcript.record(read_event(event))
    assert transcript.facts == {"rate_limit_info": {}}


def test_cost_of_a_resumed_session_of_claude_code_is_that_of_the_run() -> None:
    """Version 2.1.326 prints the total of the session after a resume."""
    transcript = Transcript("stream-json")
    since = {"claude-opus-5-5": {"costUSD": 0.25}, "claude-haiku-5": {"costUSD": 0.5}}
    result = {"type": "result", "uuid": "u", "result": "done", "total_cost_usd": 9.0, "session_id": "S"}
    transcript.feed(json.dumps({**result, "model_usage_since_last_result": since}).encode() + b"\n")
    assert transcript.spent.cost_usd == 0.75


def test_events_of_gemini_cli_are_read() -> None:
    transcript = Transcript("auto")
    events = [
        {"type": "init", "session_id": "G", "model": "gemini-2.5-flash"},
        {"type": "message", "role": "user", "content": "Do it."},
        {"type": "tool_use", "tool_name": "run_shell_command", "parameters": {"command": "ls"}},
        {"type": "tool_result", "status": "error", "error": {"message": "no such file"}},
        {"type": "message", "role": "assistant", "content": "It is ", "delta": True},
        {"type": "message", "role": "assistant", "content": "done.", "delta": True},
        {"type": "result", "status": "success", "stats": {"input_tokens": 4, "output_tokens": 2, "models": {"m": {}}}},
    ]
    said = [message for event in events for message in transcript.feed(json.dumps(event).encode() + b"\n")]
    assert [(message.kind, message.text) for message in said] == [
        ("tool_call", "run_shell_command"),
        ("error", "no such file"),
        ("text", "It is "),
        ("text", "done."),
    ]
    final = transcript.end()
    assert final is not None
    assert (final.text, transcript.session_id, transcript.model) == ("It is done.", "G", "m")
    assert transcript.spent == RunUsage(0.0, 4, 2)


def test_events_of_opencode_are_read() -> None:
    transcript = Transcript("auto")
    steps = [
        {"id": "p1", "reason": "tool-calls", "cost": 0.25, "tokens": {"input": 3, "output": 1, "cache": {"read": 2}}},
        {"id": "p2", "reason": "stop", "cost": 0.5, "tokens": {"input": 5, "output": 1, "reasoning": 1}},
    ]
    events = [
        {"type": "step_start", "sessionID": "O"},
        {"type": "tool_use", "part": {"tool": "bash", "state": {"status": "completed", "input": {"command": "ls"}}}},
        {"type": "step_finish", "sessionID": "O", "part": steps[0]},
        {"type": "text", "part": {"text": "It is done."}},
        {"type": "step_finish", "sessionID": "O", "part": steps[1]},
    ]
    for event in events:
        transcript.feed(json.dumps(event).encode() + b"\n")
    final = transcript.end()
    assert final is not None
    assert (final.text, transcript.session_id) == ("It is done.", "O")
    assert transcript.spent == RunUsage(0.75, 10, 3)
