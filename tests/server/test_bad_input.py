"""Whatever is sent: the answer says what is wrong, where, and how to fix it; nothing is changed; memory is bounded."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from shiftwork.compat.views import VIEWS
from shiftwork.model.bounds import MAX_BODY_BYTES
from shiftwork.server import request_parsing
from shiftwork.server.endpoint import Raw
from shiftwork.server.routes import ENDPOINTS
from shiftwork.wire import protocol
from tests.conformance.steps import everything, give_folder
from tests.server import processes, raw
from tests.server.endpoints import BY_NAME, CALLS, waiting
from tests.server.running import Reply, Running
from tests.server.test_hooks import REVIEW, SECRET

MEBIBYTE = 1024 * 1024


def refused(reply: Reply) -> tuple[int, str, str | None]:
    """Return status, code and place of a refusal, which must have a hint."""
    assert reply.headers["content-type"] == "application/problem+json"
    found = reply.json
    assert found["status"] == reply.status
    assert found["type"] == f"/errors/{found['code']}"
    assert found["detail"]
    assert found["hint"]
    assert found["request_id"] == reply.headers["x-request-id"]
    return reply.status, found["code"], found.get("where")


def nested(depth: int) -> bytes:
    return b'{"type": "noop", "payload": {"a": ' + b"[" * depth + b"]" * depth + b"}}"


BAD_BODIES: dict[str, tuple[bytes, int, str, str | None]] = {
    "half": (b'{"type": "no', 400, "malformed", "body"),
    "not JSON": (b"type=noop", 400, "malformed", "body"),
    "two values": (b'{"type": "a"}{"type": "b"}', 400, "malformed", "body"),
    "a byte order mark": (b'\xef\xbb\xbf{"type": "noop"}', 400, "malformed", "body"),
    "UTF-16": ('{"type": "noop"}'.encode("utf-16"), 400, "malformed", "body"),
    "compressed": (b"\x1f\x8b\x08\x00\x00", 400, "malformed", "body"),
    "a control character": (b'{"type": "a\x00b"}', 400, "malformed", "body"),
    "not a number": (b'{"type": "noop", "priority": NaN}', 400, "malformed", "body"),
    "not UTF-8": (b'{"type": "\xff"}', 422, "bad_text", "body"),
    "half of a pair": (b'{"type": "\\ud800"}', 422, "bad_text", "body"),
    "half of a pair and more": (b'{"type": "\\uD800 and much more than that"}', 422, "bad_text", "body"),
    "the other half": (b'{"type": "\\udfff"}', 422, "bad_text", "body"),
    "two halves that are no pair": (b'{"type": "\\ud83d\\ud83d"}', 422, "bad_text", "body"),
    "half of a pair in a name": (b'{"type": "noop", "payload": {"\\ude00": 1}}', 422, "bad_text", "body"),
    "a pair, and half a body": (b'{"type": "\\ud83d\\ude00', 400, "malformed", "body"),
    "a backslash and half a body": (b'{"type": "\\\\ud800', 400, "malformed", "body"),
    "NUL": (b'{"type": "a\\u0000b"}', 422, "bad_text", "body"),
    "NUL deep inside": (b'{"type": "noop", "payload": {"a": [{"b\\u0000": 1}]}}', 422, "bad_text", "body"),
    "nothing": (b"", 422, "invalid_input", "type"),
    "null": (b"null", 422, "invalid_input", None),
    "a number": (b"7", 422, "invalid_input", None),
    "a list of numbers": (b"[7]", 422, "invalid_input", "tasks[0]"),
    "no type": (b"{}", 422, "invalid_input", "type"),
    "a type that is empty": (b'{"type": ""}', 422, "invalid_input", "type"),
    "a type that is long": (b'{"type": "' + b"a" * 256 + b'"}', 422, "invalid_input", "type"),
    "a field of the wrong kind": (b'{"type": "noop", "payload": []}', 422, "invalid_input", "payload"),
    "one of a list": (b'[{"type": "a"}, {"type": 7}]', 422, "invalid_input", "tasks[1].type"),
    "a field nobody knows": (b'{"type": "noop", "colour": 1}', 422, "invalid_input", "colour"),
    "one inside another": (b'{"type": "noop", "spec": {"colour": 1}}', 422, "invalid_input", "spec.colour"),
    "infinity": (b'{"type": "noop", "priority": 1e999}', 422, "invalid_input", "priority"),
    "half a number": (b'{"type": "noop", "max_attempts": 2.5}', 422, "invalid_input", "max_attempts"),
    "a huge number": (b'{"type": "noop", "max_attempts": 1' + b"0" * 400 + b"}", 422, "invalid_input", "max_attempts"),
    "too deep": (nested(100), 413, "too_large", "task"),
    "far too deep": (nested(100_000), 413, "too_large", "body"),
    "too large": (b'{"type": "noop", "payload": {"a": "' + b"a" * MEBIBYTE + b'"}}', 413, "too_large", "task"),
    "too many": (b"[" + b'{"type": "noop"},' * 10_000 + b'{"type": "noop"}]', 413, "too_large", "tasks"),
}


@pytest.mark.requirement("C-074")
async def test_invalid_body_is_refused_and_changes_nothing(api: Running) -> None:
    before = await everything(api.state.queue)
    for case, (sent, *expected) in BAD_BODIES.items():
        reply = await api.call("POST", "/api/tasks", data=io.BytesIO(sent))
        assert refused(reply) == tuple(expected), case
    assert await everything(api.state.queue) == before


async def test_last_value_of_a_repeated_name_counts(api: Running) -> None:
    made = await api.call("POST", "/api/tasks", data=b'{"type": "a", "type": "b"}')
    assert (await api.get(f"/api/tasks/{made.json['id']}"))["type"] == "b"


async def test_whole_number_can_be_written_as_float(api: Running) -> None:
    sent = b'{"type": "noop", "max_attempts": 2.0, "priority": 9, "payload": {"a": 1.5, "b": [{"c": 1e0}]}}'
    made = await api.call("POST", "/api/tasks", data=sent)
    task = await api.get(f"/api/tasks/{made.json['id']}")
    assert (task["max_attempts"], task["payload"]) == (2, {"a": 1.5, "b": [{"c": 1}]})


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", "image/png", ""]
)
async def test_body_is_read_as_json_regardless_of_content_type(api: Running, kind: str) -> None:
    reply = await api.call("POST", "/api/tasks", data=b'{"type": "noop"}', headers={"Content-Type": kind})
    assert reply.status == 201


@pytest.mark.parametrize("target", ["/api/tasks", "/api/artifacts", "/api/hooks/some"])
async def test_compressed_body_is_refused_with_its_encoding(api: Running, line: raw.TaskLine, target: str) -> None:
    give_folder(api.state.queue)
    await api.state.queue.triggers.save("some", **REVIEW, secret=SECRET)
    for coding, body in {"gzip": gzip.compress(b'{"type": "noop"}'), "br": b"{}", "identity, GZIP": b"{}"}.items():
        line.send(raw.request("POST", target, body, content_encoding=coding))
        reply = await line.answer()
        assert (reply.status, reply.json["code"]) == (415, "unsupported_encoding")
        assert (reply.json["where"], coding in reply.json["detail"]) == ("Content-Encoding", True)
    assert (await api.get("/api/tasks"))["tasks"] == []


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_identity_encoding_is_accepted(line: raw.TaskLine, coding: str) -> None:
    line.send(raw.request("POST", "/api/tasks", b'{"type": "noop"}', content_encoding=coding))
    assert (await line.answer()).status == 201


async def test_body_in_a_view_must_be_an_object(api: Running) -> None:
    for sent in (b"7", b'["a"]', b'"a"'):
        reply = await api.call("POST", "/api/tasks?view=loki", data=sent)
        assert refused(reply)[:2] == (422, "invalid_input")


async def test_version_is_refused_for_a_dag(api: Running) -> None:
    made = await api.state.queue.submit_dag({"tasks": [{"type": "noop"}, {"type": "noop"}]})
    path = f"/api/dags/{made[0].dag_id}/cancel"
    assert refused(await api.call("POST", path, {"version": 999})) == (422, "invalid_input", "version")
    assert {task.status for task in (await api.state.queue.tasks.list()).tasks} == {"ready"}


async def test_every_route_refuses_a_nul_character(api: Running) -> None:
    """PostgreSQL cannot store it, and SQLite cuts the text there."""
    for name, arrange in CALLS.items():
        endpoint, call = BY_NAME[name], await arrange(api.state.queue.in_workspace(name))
        sent, texts = re.subn(r'": "', r'": "\\u0000', json.dumps(call.body))
        if texts and endpoint.body is not None and endpoint.body is not Raw:
            reply = await api.call(endpoint.method, call.path(endpoint, workspace=name), data=sent)
            assert refused(reply) == (422, "bad_text", "body"), name


@pytest.fixture
async def line(api: Running) -> AsyncIterator[raw.TaskLine]:
    async with raw.line(api.url) as opened:
        yield opened


def head(**headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST /api/tasks HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode()


async def test_body_announced_too_large_is_refused_at_once(line: raw.TaskLine) -> None:
    line.send(head(content_length=str(MAX_BODY_BYTES + 1)))
    found = await line.answer()
    assert (found.status, found.json["code"], found.json["where"]) == (413, "too_large", "body")


async def test_endless_body_is_read_only_to_the_limit(
    api: Running, line: raw.TaskLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_parsing, "MAX_BODY_BYTES", 100_000)
    line.send(head(transfer_encoding="chunked"))
    for _ in range(101):
        line.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
    reply = await line.answer()
    assert (reply.status, reply.json["code"], reply.json["where"]) == (413, "too_large", "body")
    assert (await api.get("/api/tasks"))["tasks"] == []


async def test_slowly_sent_body_is_refused(line: raw.TaskLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parsing, "MAX_BODY_SEC", 0.01)
    line.send(head(content_length="100") + b'{"type": ')
    found = await line.answer()
    assert (found.status, found.json["code"], found.json["where"]) == (400, "malformed", "body")


async def test_body_shorter_than_announced_has_no_effect(api: Running, line: raw.TaskLine) -> None:
    line.send(head(content_length="100") + b'{"type": "noop"}')
    await line.hang_up()
    assert (await api.get("/api/tasks"))["tasks"] == []


async def test_incomplete_request_is_disconnected(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SEC", 0.05)
    for sent in (b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: local", head(content_length="100")):
        async with raw.line(api.url) as line:
            line.send(sent)
            assert await line.is_over()


async def test_client_sending_on_after_refusal_is_disconnected(
    line: raw.TaskLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SEC", 0.05)
    line.send(head(content_length=str(10 * MAX_BODY_BYTES)))
    assert (await line.answer()).status == 413
    assert await line.is_over()


async def test_connection_is_kept_for_the_next_request(line: raw.TaskLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to receiving a request, not to its answer or to the connection."""
    monkeypatch.setattr(protocol, "MAX_REQUEST_SEC", 0.1)
    for _ in range(2):
        line.send(raw.request("POST", "/api/tasks/claim", b'{"agent_id": "ada", "wait_sec": 0.2}'))
        assert (await line.answer()).status == 200


async def test_large_request_head_is_refused(api: Running) -> None:
    heads = [
        b"GET /" + b"a" * MEBIBYTE,
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * MEBIBYTE,
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * (MEBIBYTE // 6),
        raw.request("GET", "/healthz", x="a" * 70_000),
        raw.request("GET", "/healthz?" + "a" * 70_000),
        raw.request("POST", "/api/tasks", b'{"type": "noop"}', x="a" * 70_000),
        raw.request("GET", "/ws", connection="upgrade", upgrade="websocket", x="a" * 70_000),
    ]
    for sent in heads:
        async with raw.line(api.url) as line:
            line.send(sent)
            reply = await line.answer()
            assert (reply.status, reply.json["code"], reply.json["where"]) == (431, "too_large", "headers")
            assert await line.is_over()
    assert (await api.get("/api/tasks"))["tasks"] == []


async def test_request_head_can_arrive_with_a_large_body(line: raw.TaskLine) -> None:
    body = b'{"type": "noop", "payload": {"a": "' + b"a" * 100_000 + b'"}}'
    line.send(raw.request("POST", "/api/tasks", body, x="a" * 60_000))
    assert (await line.answer()).status == 201


async def test_many_headers_are_accepted(line: raw.TaskLine) -> None:
    line.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 5000 + b"\r\n")
    assert (await line.answer()).status == 200


async def _pour(url: str, beginning: bytes, part: bytes, total: int) -> None:
    """Send until the server disconnects."""
    async with raw.line(url) as line:
        line.send(beginning)
        sent = 0
        while sent < total and await line.drain():
            line.send(part)
            sent += len(part)


async def test_memory_is_bounded_for_endless_requests(tmp_path: Path) -> None:
    chunked = head(transfer_encoding="chunked")
    part = b"x" * 65_000
    poured = {
        "chunks": (chunked, b"fde8\r\n" + part + b"\r\n"),
        "a body with a length": (head(content_length=str(200 * MEBIBYTE)), part),
        "a body just short enough": (head(content_length=str(16 * MEBIBYTE)), part),
        "a path": (b"GET /", part),
        "a header": (b"GET / HTTP/1.1\r\nx: ", part),
        "headers": (b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 10_000),
        "an extension of a chunk": (chunked + b"5;", part),
        "a trailer": (chunked + b"0\r\nx: ", part),
        "trailers": (chunked + b"0\r\n", b"x: y\r\n" * 10_000),
        "a token": (b"GET /api/me HTTP/1.1\r\nauthorization: Bearer ", part),
    }
    async with await processes.start(f"sqlite:///{tmp_path}/queue.db", "--no-duties") as server:
        before = _peak(server.process.pid)
        for beginning, each in poured.values():
            await _pour(server.url, beginning, each, 100 * MEBIBYTE)
        assert _peak(server.process.pid) - before < 80 * MEBIBYTE
        async with raw.line(server.url) as line:
            line.send(raw.request("GET", "/healthz"))
            assert (await line.answer()).status == 200


def _peak(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


NOT_HTTP = {
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "words": b"hello there\r\n\r\n",
    "two lengths": head(content_length="5\r\ncontent-length: 6") + b"{}   ",
    "a length and chunks": head(content_length="5", transfer_encoding="chunked") + b"0\r\n\r\n",
    "a negative length": head(content_length="-1"),
    "a length beyond counting": head(content_length="9" * 5000),
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nnonsense\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
    "bytes in the path": b"GET /api/tasks/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
}


async def test_non_http_input_is_refused(api: Running) -> None:
    for case, sent in NOT_HTTP.items():
        async with raw.line(api.url) as line:
            line.send(sent)
            reply = await line.answer()
            assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json"), case
            assert reply.json["code"] == "malformed"
            assert reply.json["hint"]
            assert await line.is_over()


async def test_invalid_chunk_ends_the_request_without_effect(api: Running, line: raw.TaskLine) -> None:
    line.send(head(transfer_encoding="chunked") + b'10\r\n{"type": "noop"}\r\nnonsense\r\n')
    assert (await line.answer()).status == 400
    assert (await api.get("/api/tasks"))["tasks"] == []


async def test_http_1_0_client_is_served(line: raw.TaskLine) -> None:
    line.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert (await line.answer()).status == 200
    assert await line.is_over()


BAD_PATHS = {
    "/api/tasks/..": (404, "not_found", None),
    "/api/tasks/%2e%2e": (404, "not_found", None),
    "/api/tasks/%2e%2e%2fqueue": (404, "not_found", None),
    "/api/tasks/..%5c..%5cetc": (404, "not_found", None),
    "/api/tasks/%00": (422, "bad_text", "task_id"),
    "/api/tasks/a%00b/explain": (422, "bad_text", "task_id"),
    "/api/tasks/%ff": (422, "bad_text", "task_id"),
    "/api/tasks/%ed%a0%80": (422, "bad_text", "task_id"),
    "/api/tasks/" + "a" * 256: (422, "invalid_input", "task_id"),
    "/api/tasks/" + "a" * 20_000: (422, "invalid_input", "task_id"),
    "/api/tasks/task_01JZZZZZZZZZZZZZZZZZZZZZZZ": (404, "not_found", None),
    "/api/tasks/a/b/c": (404, "not_found", None),
    "/api/dags/nonsense": (404, "not_found", None),
    "/nowhere": (404, "not_found", None),
    "//api/tasks": (404, "not_found", None),
    "/api/tasks/": (404, "not_found", None),
    "/api//tasks": (404, "not_found", None),
    "/API/tasks": (404, "not_found", None),
    "/api/tasks%2f": (404, "not_found", None),
    "/api/tasks;a=b": (404, "not_found", None),
    "/..%2f..%2fetc/passwd": (404, "not_found", None),
}


async def test_invalid_path_is_refused(line: raw.TaskLine) -> None:
    for target, expected in BAD_PATHS.items():
        line.send(raw.request("GET", target))
        found = await line.answer()
        assert (found.status, found.json["code"], found.json.get("where")) == expected, target
        assert found.json["hint"]


async def test_task_can_have_any_name_in_its_path(api: Running, line: raw.TaskLine) -> None:
    for name in ("a/b", "repo#7", "a b", "ünïcode", "100%", "%2F", "..", "?x=1", "a+b", "\u2028"):
        made = await api.post("/api/tasks", {"type": "noop", "id": name})
        line.send(raw.request("GET", f"/api/tasks/{quote(name, safe='')}"))
        assert (await line.answer()).json["id"] == made["id"], name


METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"}


async def test_wrong_method_is_refused_with_the_allowed_ones(api: Running) -> None:
    patterns = [(re.compile(re.sub(r"{\w+}", "[^/]+", endpoint.path)), endpoint.method) for endpoint in ENDPOINTS]
    for path in sorted({re.sub(r"{\w+}", "7", endpoint.path) for endpoint in ENDPOINTS}):
        has = {method for pattern, method in patterns if pattern.fullmatch(path)}
        for method in sorted(METHODS - has):
            reply = await api.call(method, path)
            assert refused(reply) == (405, "wrong_method", None), (method, path)
            assert set(reply.headers["allow"].split(", ")) == has | ({"HEAD"} if "GET" in has else set())


BAD_QUERIES = {
    "/api/tasks?colour=red": (422, "invalid_input", "colour"),
    "/api/tasks?after=": (422, "invalid_input", "after"),
    "/api/tasks?parent=": (422, "invalid_input", "parent"),
    "/api/tasks?limit=0": (422, "invalid_input", "limit"),
    "/api/tasks?limit=1001": (422, "invalid_input", "limit"),
    "/api/tasks?limit=ten": (422, "invalid_input", "limit"),
    "/api/tasks?limit=": (422, "invalid_input", "limit"),
    "/api/tasks?limit=1&limit=2": (422, "invalid_input", "limit"),
    "/api/tasks?limit=null": (422, "invalid_input", "limit"),
    "/api/tasks?limit=" + "9" * 5000: (422, "invalid_input", "limit"),
    "/api/tasks?since=nan": (422, "invalid_input", "since"),
    "/api/tasks?since=inf": (422, "invalid_input", "since"),
    "/api/tasks?since=-Infinity": (422, "invalid_input", "since"),
    "/api/tasks?since=null": (422, "invalid_input", "since"),
    "/api/tasks?since=1e999": (422, "invalid_input", "since"),
    "/api/tasks?status=happy": (422, "invalid_input", "status"),
    "/api/tasks?view=nobody": (422, "invalid_input", "view"),
    "/api/tasks?view=": (422, "invalid_input", "view"),
    "/api/tasks?workspace=": (422, "invalid_input", "workspace"),
    "/api/tasks?workspace=" + "w" * 256: (422, "invalid_input", "workspace"),
    "/api/tasks?type=%00": (422, "bad_text", "type"),
    "/api/tasks?type=%ff": (422, "bad_text", "query"),
    "/api/tasks?%ff=a": (422, "bad_text", "query"),
    "/api/tasks?" + "&".join(["status=ready"] * 1001): (422, "invalid_input", "query"),
    "/api/events?after=-1": (422, "invalid_input", "after"),
    "/api/events?after=1" + "0" * 30: (422, "invalid_input", "after"),
    "/api/dead-letters?reviewed_too=perhaps": (422, "invalid_input", "reviewed_too"),
    "/healthz?colour=red": (422, "invalid_input", "colour"),
}


async def test_invalid_query_is_refused_by_name(line: raw.TaskLine) -> None:
    for target, expected in BAD_QUERIES.items():
        line.send(raw.request("GET", target))
        found = await line.answer()
        assert (found.status, found.json["code"], found.json.get("where")) == expected, target[:60]


BAD_HEADERS = {
    "X-Request-Id": ["", "r" * 256, "r\xe9", "\xff"],
    "X-Actor": ["", "a" * 256, "Ren\xe9e"],
    "Idempotency-Key": ["", "k" * 256, "\xe9"],
    "If-Match": ["", "abc", 'W/"x-1"', "-1", "1.5", '"1', "9" * 5000, "1, 2"],
}


async def test_invalid_header_is_refused_by_name(api: Running, line: raw.TaskLine) -> None:
    task_id = await waiting(api.state.queue)
    before = await everything(api.state.queue)
    for name, value in [(name, value) for name, values in BAD_HEADERS.items() for value in values]:
        line.send(raw.request("PATCH", f"/api/tasks/{task_id}", b'{"priority": 9}', **{name: value}))
        found = await line.answer()
        assert (found.status, found.json["code"], found.json["where"]) == (422, "invalid_input", name), value
        assert found.headers["x-request-id"] == found.json["request_id"]
        assert len(found.json["request_id"]) == 16, "one of ours, since theirs cannot be kept"
    assert await everything(api.state.queue) == before


BEYOND: list[tuple[str, dict[str, Any], str]] = [
    ("/api/tasks/claim", {}, "agent_id"),
    ("/api/tasks/claim", {"agent_id": "ada", "wait_sec": 26}, "wait_sec"),
    ("/api/tasks/claim", {"agent_id": "ada", "wait_sec": -1}, "wait_sec"),
    ("/api/tasks/claim", {"agent_id": "ada", "count": 0}, "count"),
    ("/api/tasks/claim", {"agent_id": "ada", "count": 1001}, "count"),
    ("/api/queue/purge", {}, "purge"),
    ("/api/queue/purge", {"status": ["happy"]}, "status"),
    ("/api/batch/cancel", {"task_ids": ["x"] * 1001}, "task_ids"),
    ("/api/tokens", {"name": "x", "scopes": []}, "scopes"),
    ("/api/tokens", {"name": "x", "scopes": ["root"]}, "scopes[0]"),
    ("/api/testing/clock", {"advance_sec": -1}, "advance_sec"),
]


async def test_value_beyond_a_limit_is_refused_by_name(api: Running) -> None:
    before = await everything(api.state.queue)
    for path, body, where in BEYOND:
        assert refused(await api.call("POST", path, body)) == (422, "invalid_input", where)
    assert await everything(api.state.queue) == before


async def test_times_beyond_the_calendar_are_shown_in_every_view(api: Running) -> None:
    """Accepted values can be read, also where times are written as dates."""
    made = await api.post("/api/tasks", {"type": "noop", "deadline": 1e300, "timeout_sec": 1e300})
    await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True})
    for view in VIEWS:
        await api.get(f"/api/tasks/{made['id']}?view={view}")
