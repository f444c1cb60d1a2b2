"""The batch APIs of Anthropic and OpenAI, as their documentation describes them, on a port of 127.0.0.1."""

import functools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.batches.provider_answers import FakeBatch, anthropic, anthropic_result, openai, openai_lines

KEY = "sk-of-a-test"


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
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self))
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


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    def __init__(self, fake: FakeProvider, *args: Any) -> None:
        self._fake = fake
        super().__init__(*args)  # it reads and answers here

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self._fake.calls[f"GET {re.sub('batch_[0-9]+', 'ID', path)}"] += 1
        routes: Sequence[tuple[str, Callable[..., None]]] = (
            ("/v1/messages/batches", self._list_anthropic),
            ("/v1/messages/batches/([^/]+)/results", self._show_results),
            ("/v1/messages/batches/([^/]+)", self._show_anthropic),
            ("/v1/batches", self._list_openai),
            ("/v1/batches/([^/]+)", self._show_openai),
            ("/v1/files/(out|err)-([^/]+)/content", self._show_file),
        )
        for pattern, answer in routes:
            if found := re.fullmatch(pattern, path):
                answer(*found.groups())
                return
        self.send_error(404)

    def _list_anthropic(self) -> None:
        self._send_page([anthropic(each) for each in self._asked_batches()])

    def _list_openai(self) -> None:
        self._send_page([openai(each) for each in self._asked_batches()])

    def _asked_batches(self) -> list[FakeBatch]:
        """The batches after the one that the query names, newest first."""
        query = parse_qs(urlsplit(self.path).query)
        after = query.get("after_id", query.get("after", [""]))[0]
        newest = sorted(self._fake.batches.values(), key=lambda each: -int(each.id.removeprefix("batch_")))
        return newest[[each.id for each in newest].index(after) + 1 if after else 0 :]

    def _show_anthropic(self, batch_id: str) -> None:
        self._send(anthropic(self._fake.batches[batch_id]))

    def _show_openai(self, batch_id: str) -> None:
        self._send(openai(self._fake.batches[batch_id]))

    def _show_results(self, batch_id: str) -> None:
        batch = self._fake.batches[batch_id]
        results = [
            {"custom_id": custom_id, "result": anthropic_result(batch, request)}
            for custom_id, request in batch.requests.items()
        ]
        self._send_lines(results[::-1])  # in any order

    def _show_file(self, kind: str, batch_id: str) -> None:
        self._send_lines(openai_lines(self._fake.batches[batch_id], errors=kind == "err"))

    def do_POST(self) -> None:
        fake, body = self._fake, self._read_body()
        fake.calls[f"POST {re.sub('batch_[0-9]+', 'ID', self.path)}"] += 1
        if KEY not in (self.headers.get("x-api-key"), (self.headers.get("authorization") or "")[7:]):
            self.send_error(401)
        elif fake.refuse_with is not None:
            self.send_error(fake.refuse_with)
        elif found := re.fullmatch(r"/v1/(?:messages/)?batches/([^/]+)/cancel", self.path):
            fake.batches[found[1]].cancelled = True
            self._send({})
        elif self.path == "/v1/files":
            fake.files[f"file-{len(fake.files)}"] = self._uploaded(body)
            self._send({"id": f"file-{len(fake.files) - 1}"})
        else:
            self._create(json.loads(body))

    def _create(self, asked: dict[str, Any]) -> None:
        fake = self._fake
        if self.path == "/v1/batches":
            rows = [json.loads(line) for line in fake.files[asked["input_file_id"]].splitlines()]
            batch = fake.create({row["custom_id"]: row["body"] for row in rows}, asked["metadata"])
            shown = openai(batch)
        else:
            batch = fake.create({row["custom_id"]: row["params"] for row in asked["requests"]})
            shown = anthropic(batch)
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", custom_id) for custom_id in batch.requests)
        if fake.lose_answers:
            fake.lose_answers -= 1
            self.close_connection = True
            self.connection.close()
        else:
            self._send(shown)

    def _uploaded(self, body: bytes) -> bytes:
        """The file in a form."""
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        parts: Any = BytesParser().parsebytes(head + body).get_payload()
        found = {part.get_param("name", header="content-disposition"): part for part in parts}
        assert found["purpose"].get_payload() == "batch"
        content = found["file"].get_payload(decode=True)
        assert isinstance(content, bytes)
        return content

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            return self._read_chunks()
        return self.rfile.read(int(self.headers["content-length"] or 0)) if "content-length" in self.headers else b""

    def _read_chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _send_page(self, items: list[dict[str, Any]]) -> None:
        """Two at a time, so that several pages are read."""
        shown = items[:2]
        self._send({"data": shown, "has_more": len(items) > 2, "last_id": shown[-1]["id"] if shown else None})

    def _send(self, body: dict[str, Any]) -> None:
        self._write(json.dumps(body).encode())

    def _send_lines(self, rows: list[dict[str, Any]]) -> None:
        self._write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def _write(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
