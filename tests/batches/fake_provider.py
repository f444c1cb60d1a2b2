"""The batch APIs of Anthropic and OpenAI, as their documentation describes them, on a port of 127.0.0.1."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKENS_IN, TOKENS_OUT = 1000, 100
KEY = "sk-of-a-test"


@dataclass
class FakeBatch:
    """One batch that was created."""

    id: str
    created_at: float
    requests: dict[str, dict[str, Any]]
    metadata: dict[str, str] = field(default_factory=dict)
    status: str = "in_progress"
    cancelled: bool = False

    def prompts(self) -> list[str]:
        return [request["messages"][0]["content"] for request in self.requests.values()]


class FakeProvider:
    """Both providers in one. A prompt determines its answer: `error`, `expire`, `json`, or anything else."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.batches: dict[str, FakeBatch] = {}
        self.files: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.lose_answers = 0
        """So many batches are created without an answer."""
        self.refuse_with: int | None = None
        self.ends_at_once = False
        self.url = ""
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator["FakeProvider"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self.url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{self.url}/v1",
        }

    def end(self, status: str = "ended") -> None:
        """End all batches."""
        for batch in self.batches.values():
            batch.status = status

    def prompts(self) -> list[str]:
        """Return the prompts of all batches."""
        return sorted(prompt for batch in self.batches.values() for prompt in batch.prompts())

    def create(self, requests: dict[str, dict[str, Any]], metadata: dict[str, str] | None = None) -> FakeBatch:
        with self._lock:
            batch = FakeBatch(f"batch_{len(self.batches) + 1}", self.now(), requests, metadata or {})
            batch.status = "ended" if self.ends_at_once else batch.status
            self.batches[batch.id] = batch
        return batch


def _text(prompt: str) -> str:
    return '{"found": 3}' if "json" in prompt else f"answer to {prompt}"


def _anthropic(batch: FakeBatch) -> dict[str, Any]:
    ended = batch.status != "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "canceling" if batch.cancelled else "in_progress",
        "request_counts": {"processing": 0 if ended else len(batch.requests), "succeeded": 0, "errored": 0}
        | {"canceled": 0, "expired": len(batch.requests) if ended else 0},
        "created_at": datetime.fromtimestamp(batch.created_at, UTC).isoformat().replace("+00:00", "Z"),
    }


def _anthropic_result(batch: FakeBatch, request: dict[str, Any]) -> dict[str, Any]:
    prompt = request["messages"][0]["content"]
    if batch.status == "expired" or "expire" in prompt:
        return {"type": "expired"}
    if "error" in prompt:
        error = {"type": "invalid_request_error", "message": "max_tokens: too large"}
        return {"type": "errored", "error": {"type": "error", "error": error}}
    usage = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT}
    content = [{"type": "text", "text": _text(prompt)}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"]}
    return {"type": "succeeded", "message": {**message, "content": content, "usage": usage}}


def _openai(batch: FakeBatch) -> dict[str, Any]:
    ended = {"ended": "completed"}.get(batch.status, batch.status)
    return {
        "id": batch.id,
        "object": "batch",
        "status": "cancelling" if batch.cancelled and ended == "in_progress" else ended,
        "created_at": int(batch.created_at),
        "metadata": batch.metadata,
        "request_counts": {"total": len(batch.requests), "completed": 0, "failed": 0},
        "output_file_id": f"out-{batch.id}" if ended == "completed" else None,
        "error_file_id": f"err-{batch.id}" if ended in {"completed", "expired"} else None,
    }


def _openai_lines(batch: FakeBatch, *, errors: bool) -> list[dict[str, Any]]:
    lines = []
    for custom_id, request in batch.requests.items():
        prompt = request["messages"][0]["content"]
        line: dict[str, Any] = {"custom_id": custom_id, "response": None, "error": None}
        failed = "error" in prompt or "expire" in prompt or batch.status == "expired"
        if batch.status == "expired" or "expire" in prompt:
            line["error"] = {"code": "batch_expired", "message": "This request could not be executed in time."}
        elif "error" in prompt:
            error = {"type": "invalid_request_error", "message": "max_tokens: too large"}
            line["response"] = {"status_code": 400, "body": {"error": error}}
        else:
            usage = {"prompt_tokens": TOKENS_IN, "completion_tokens": TOKENS_OUT}
            choices = [{"message": {"role": "assistant", "content": _text(prompt)}}]
            body = {"model": request["model"], "choices": choices, "usage": usage}
            line["response"] = {"status_code": 200, "body": body}
        if failed == errors:
            lines.append(line)
    return lines


def _handler(fake: FakeProvider) -> type[BaseHTTPRequestHandler]:  # noqa: C901  # one route after another
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            fake.calls[f"GET {re.sub('batch_[0-9]+', 'ID', path)}"] += 1
            after = query.get("after_id", query.get("after", [""]))[0]
            newest = sorted(fake.batches.values(), key=lambda each: -int(each.id.removeprefix("batch_")))
            names = [each.id for each in newest]
            page = newest[names.index(after) + 1 if after else 0 :]
            if path == "/v1/messages/batches":
                self.page([_anthropic(each) for each in page])
            elif found := re.fullmatch("/v1/messages/batches/([^/]+)/results", path):
                batch = fake.batches[found[1]]
                results = [
                    {"custom_id": custom_id, "result": _anthropic_result(batch, request)}
                    for custom_id, request in batch.requests.items()
                ]
                self.lines(results[::-1])  # in any order
            elif found := re.fullmatch("/v1/messages/batches/([^/]+)", path):
                self.answer(_anthropic(fake.batches[found[1]]))
            elif path == "/v1/batches":
                self.page([_openai(each) for each in page])
            elif found := re.fullmatch("/v1/batches/([^/]+)", path):
                self.answer(_openai(fake.batches[found[1]]))
            elif found := re.fullmatch("/v1/files/(out|err)-([^/]+)/content", path):
                self.lines(_openai_lines(fake.batches[found[2]], errors=found[1] == "err"))
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = (
                self.rfile.read(int(self.headers["content-length"] or 0)) if "content-length" in self.headers else b""
            )
            if self.headers.get("transfer-encoding") == "chunked":
                body = self.chunks()
            fake.calls[f"POST {re.sub('batch_[0-9]+', 'ID', self.path)}"] += 1
            if KEY not in (self.headers.get("x-api-key"), (self.headers.get("authorization") or "")[7:]):
                self.send_error(401)
            elif fake.refuse_with is not None:
                self.send_error(fake.refuse_with)
            elif found := re.fullmatch(r"/v1/(?:messages/)?batches/([^/]+)/cancel", self.path):
                fake.batches[found[1]].cancelled = True
                self.answer({})
            elif self.path == "/v1/files":
                fake.files[f"file-{len(fake.files)}"] = self.uploaded(body)
                self.answer({"id": f"file-{len(fake.files) - 1}"})
            else:
                self.create(json.loads(body))

        def create(self, asked: dict[str, Any]) -> None:
            if self.path == "/v1/batches":
                rows = [json.loads(line) for line in fake.files[asked["input_file_id"]].splitlines()]
                batch = fake.create({row["custom_id"]: row["body"] for row in rows}, asked["metadata"])
                shown = _openai(batch)
            else:
                batch = fake.create({row["custom_id"]: row["params"] for row in asked["requests"]})
                shown = _anthropic(batch)
            assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", custom_id) for custom_id in batch.requests)
            if fake.lose_answers:
                fake.lose_answers -= 1
                self.close_connection = True
                self.connection.close()
            else:
                self.answer(shown)

        def uploaded(self, body: bytes) -> bytes:
            head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
            parts: Any = BytesParser().parsebytes(head + body).get_payload()
            found = {part.get_param("name", header="content-disposition"): part for part in parts}
            assert found["purpose"].get_payload() == "batch"
            content = found["file"].get_payload(decode=True)
            assert isinstance(content, bytes)
            return content

        def chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def page(self, items: list[dict[str, Any]]) -> None:
            """Two at a time, so that several pages are read."""
            shown = items[:2]
            self.answer({"data": shown, "has_more": len(items) > 2, "last_id": shown[-1]["id"] if shown else None})

        def answer(self, body: dict[str, Any]) -> None:
            self.write(json.dumps(body).encode())

        def lines(self, rows: list[dict[str, Any]]) -> None:
            self.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

        def write(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
