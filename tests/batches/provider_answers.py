"""Batches as Anthropic and OpenAI show them. A prompt says how it is answered: `error`, `expire`, `json`, or else."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

TOKENS_IN, TOKENS_OUT = 1000, 100


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


def _text(prompt: str) -> str:
    return '{"found": 3}' if "json" in prompt else f"answer to {prompt}"


def anthropic(batch: FakeBatch) -> dict[str, Any]:
    ended = batch.status != "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "canceling" if batch.cancelled else "in_progress",
        "request_counts": {"processing": 0 if ended else len(batch.requests), "succeeded": 0, "errored": 0}
        | {"canceled": 0, "expired": len(batch.requests) if ended else 0},
        "created_at": datetime.fromtimestamp(batch.created_at, UTC).isoformat().replace("+00:00", "Z"),
    }


def anthropic_result(batch: FakeBatch, request: dict[str, Any]) -> dict[str, Any]:
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


def openai(batch: FakeBatch) -> dict[str, Any]:
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


def openai_lines(batch: FakeBatch, *, errors: bool) -> list[dict[str, Any]]:
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
