"""A model provider on 127.0.0.1 for real agent programs: Anthropic Messages, OpenAI Responses and Gemini.

It answers every conversation in the same way: one call of the shell, then a sentence. `mode` makes it refuse instead:
with a rate limit, with refused credentials, or by never answering. It stores the requests.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Mode = Literal["answer", "tool", "rate_limit", "auth", "hang"]

WORDS = "All of it is done."
COMMAND = "echo made > made.txt"
TOKENS_IN, TOKENS_OUT = 120, 30
"""Of each answer."""
RESET_SEC = 7200
Refusal = tuple[dict[str, Any], dict[str, str]]
_SHELLS = ("Bash", "exec_command", "shell_command", "shell", "run_shell_command", "bash")


class ModelServer:
    """The provider. Its address is the base of every program's own setting."""

    def __init__(self) -> None:
        self.mode: Mode = "answer"
        self.requests: list[dict[str, Any]] = []
        self.answered = 0
        """Turns of the agent that were answered, and have to be paid for."""
        self.headers: dict[str, str] = {}
        """Sent with each answer of a model."""
        self.refused: list[str] = []
        """Hosts elsewhere that a program wanted to reach through us as its proxy."""
        self.hangs_after_tool = False
        """Whether it stops answering once a tool was called."""
        self.asked = threading.Event()
        """Set once a model was asked."""
        self.released = threading.Event()
        """Set when an answer that hangs may end."""
        handler = type("Handler", (_Handler,), {"model": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["ModelServer"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def model_calls(self) -> list[dict[str, Any]]:
        """The turns of the agent; the programs also ask for titles and the like, without tools."""
        return [each for each in self.requests if each["tools"]]


class _Handler(BaseHTTPRequestHandler):
    model: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_CONNECT(self) -> None:
        self.model.refused.append(self.path)
        self._plain(403, {"error": "there is nothing but this machine"})

    def do_HEAD(self) -> None:
        self._plain(200, {})

    def do_GET(self) -> None:
        if "://" in self.path and not self.path.startswith(self.model.url):
            self.model.refused.append(self.path)
        self._plain(404, {"error": {"type": "not_found_error", "message": "there is no such thing"}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.loads(raw or b"{}")
        path = self.path.partition("?")[0]
        dialect = _dialect(path)
        if dialect is None or path.endswith(("count_tokens", "countTokens")):
            counted = {"input_tokens": TOKENS_IN, "totalTokens": TOKENS_IN}
            return self._plain(200, counted if "ount" in path else {})
        request = {"path": path, "model": _model(path, body), "tools": _tools(body), "text": raw.decode()}
        self.model.requests.append(request)
        if request["tools"]:
            self.model.asked.set()
        mode = self.model.mode
        if mode == "rate_limit":
            return self._refuse(429, *dialect.limited)
        if mode == "auth":
            return self._refuse(401, *dialect.unknown)
        after_tool = self.model.hangs_after_tool and dialect.has_result(body)
        if request["tools"] and (mode == "hang" or after_tool):
            self._events([])
            self.model.released.wait(120)
            return None
        shell = next((name for name in request["tools"] if name in _SHELLS), None)
        self.model.answered += bool(request["tools"])
        calls = shell if mode == "tool" and not dialect.has_result(body) else None
        answer = dialect.answer(request["model"], calls)
        if ("stream" in body and not body["stream"]) or path.endswith(":generateContent"):
            return self._plain(
                200, answer[-1][1] if path.endswith("generateContent") else dialect.whole(request["model"])
            )
        return self._events(answer)

    def _refuse(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        """Refuse the request; resets are in two hours."""
        at = int(time.time()) + RESET_SEC
        body = json.loads(json.dumps(body).replace('"RESET"', str(at)))
        self._plain(status, body, {name: value.replace("RESET", str(at)) for name, value in headers.items()})

    def _plain(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _events(self, events: list[tuple[str | None, Any]]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        for name, value in self.model.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for kind, data in events:
            head = f"event: {kind}\n" if kind else ""
            self.wfile.write(f"{head}data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()


def _model(path: str, body: dict[str, Any]) -> str:
    return str(body.get("model") or path.rpartition("/")[2].partition(":")[0])


def _tools(body: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for tool in body.get("tools") or []:
        found += [each["name"] for each in tool.get("functionDeclarations", [])]
        found += [tool["name"]] if "name" in tool else []
    return found


def _arguments(tool: str) -> dict[str, Any]:
    return {"cmd" if tool == "exec_command" else "command": COMMAND, "description": "Make a file"}


class _Anthropic:
    limited: Refusal = (
        {
            "type": "error",
            "error": {"type": "rate_limit_error", "message": "This request would exceed your rate limit."},
        },
        {
            "retry-after": str(RESET_SEC),
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-reset": "RESET",
            "anthropic-ratelimit-unified-5h-status": "rejected",
            "anthropic-ratelimit-unified-5h-reset": "RESET",
            "anthropic-ratelimit-unified-5h-utilization": "1.0",
        },
    )
    unknown: Refusal = (
        {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}},
        {"x-should-retry": "false"},
    )

    @staticmethod
    def has_result(body: dict[str, Any]) -> bool:
        return '"tool_result"' in json.dumps(body.get("messages"))

    @classmethod
    def whole(cls, model: str) -> dict[str, Any]:
        usage = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT}
        content = [{"type": "text", "text": WORDS}]
        kind = {"id": _id("msg"), "type": "message", "role": "assistant", "model": model}
        return {**kind, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}

    @classmethod
    def answer(cls, model: str, tool: str | None) -> list[tuple[str | None, Any]]:
        begun = {**cls.whole(model), "content": [], "stop_reason": None}
        begun["usage"] = {"input_tokens": TOKENS_IN, "output_tokens": 1}
        if tool is None:
            block: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": WORDS}
        else:
            block = {"type": "tool_use", "id": _id("toolu"), "name": tool, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(_arguments(tool))}
        ended = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": TOKENS_OUT}},
            {"type": "message_stop"},
        ]
        return [(event["type"], event) for event in events]


class _Responses:
    limited: Refusal = (
        {
            "error": {
                "type": "usage_limit_reached",
                "message": "The usage limit has been reached",
                "plan_type": "plus",
                "resets_at": "RESET",
            }
        },
        {"retry-after": str(RESET_SEC)},
    )
    unknown: Refusal = (
        {
            "error": {
                "type": "invalid_request_error",
                "code": "invalid_api_key",
                "message": "Incorrect API key provided",
            }
        },
        {},
    )

    @staticmethod
    def has_result(body: dict[str, Any]) -> bool:
        return '"function_call_output"' in json.dumps(body.get("input"))

    @classmethod
    def whole(cls, model: str, output: list[Any] | None = None) -> dict[str, Any]:
        counted = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        known = {"id": _id("resp"), "object": "response", "created_at": int(time.time()), "model": model}
        return {**known, "status": "completed", "output": output or [cls._words()], "usage": {**counted, **details}}

    @staticmethod
    def _words() -> dict[str, Any]:
        content = [{"type": "output_text", "text": WORDS, "annotations": []}]
        return {"id": _id("msg"), "type": "message", "role": "assistant", "status": "completed", "content": content}

    @classmethod
    def answer(cls, model: str, tool: str | None) -> list[tuple[str | None, Any]]:
        if tool is None:
            item = cls._words()
        else:
            arguments = json.dumps(_arguments(tool))
            item = {"type": "function_call", "id": _id("fc"), "call_id": _id("call"), "name": tool}
            item |= {"arguments": arguments, "status": "completed"}
        whole = cls.whole(model, [item])
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {**item, "content": []} if tool is None else item,
            },
        ]
        if tool is None:
            place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            events.append({"type": "response.output_text.delta", **place, "delta": WORDS})
            events.append({"type": "response.output_text.done", **place, "text": WORDS})
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        events.append({"type": "response.completed", "response": whole})
        return [(event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events)]


class _Gemini:
    limited: Refusal = (
        {
            "error": {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "message": "You exceeded your current quota, please check your plan.",
                "details": [
                    {
                        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                        "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}],
                    },
                    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{RESET_SEC}s"},
                ],
            }
        },
        {},
    )
    unknown: Refusal = (
        {
            "error": {
                "code": 401,
                "status": "UNAUTHENTICATED",
                "message": "API key not valid. Please pass a valid API key.",
            }
        },
        {},
    )

    @staticmethod
    def has_result(body: dict[str, Any]) -> bool:
        return '"functionResponse"' in json.dumps(body.get("contents"))

    @classmethod
    def whole(cls, model: str) -> dict[str, Any]:
        return cls.answer(model, None)[0][1]  # type: ignore[no-any-return]  # it is an object

    @classmethod
    def answer(cls, model: str, tool: str | None) -> list[tuple[str | None, Any]]:
        part: dict[str, Any] = {"text": WORDS}
        if tool is not None:
            part = {"functionCall": {"name": tool, "args": _arguments(tool)}}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        used = {"promptTokenCount": TOKENS_IN, "candidatesTokenCount": TOKENS_OUT}
        used["totalTokenCount"] = TOKENS_IN + TOKENS_OUT
        return [(None, {"candidates": [candidate], "usageMetadata": used, "modelVersion": model})]


_LOCK = threading.Lock()
_NUMBERS: dict[str, int] = {}


def _id(kind: str) -> str:
    with _LOCK:
        _NUMBERS[kind] = _NUMBERS.get(kind, 0) + 1
        return f"{kind}_{_NUMBERS[kind]:08d}"


def _dialect(path: str) -> Any:
    if path.endswith("/messages"):
        return _Anthropic
    if path.endswith("/responses"):
        return _Responses
    return _Gemini if "enerateContent" in path else None
