"""The names of the streams, and the conversion of their entries in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

VERSION = "1.2.1"
GROUP = "cg:workers"
READERS = "cg:orchestrator"
"""The group in which bridges of one queue share the results of workers."""

TASK = ("task_id", "tool_name", "payload", "idempotency_key", "retry_count", "type", "trace")
RESULT = ("task_id", "status", "result", "error", "retryable", "worker")
LETTER = ("task_id", "tool_name", "payload", "error", "retry_count", "failed_at")
MARK = "written_by"
"""Marks dead letters written by the queue; those of workers are reports to it."""

MAX_DIGITS = 18
"""The most digits of a number in an entry: ample for a counter, and well below Python's own limit."""

SUCCEEDED, FAILED = "succeeded", "failed"
Fields = Mapping[str, str]


class Streams(NamedTuple):
    """The keys of one queue in Redis."""

    task: str
    result: str
    dlq: str
    events: str
    published: str
    """A hash from offers to entry ids, so that no offer is written twice."""

    @classmethod
    def under(cls, prefix: str) -> Streams:
        names = ("stream:task", "stream:result", "stream:dlq", "stream:events", "shiftwork:published")
        return cls(*(prefix + name for name in names))


class Malformed(Exception):
    """An entry is invalid; the message says why."""


class Result(NamedTuple):
    """A worker's result for a task."""

    task_id: str
    worker: str | None
    succeeded: bool
    data: Any = None
    error: str | None = None
    retry: bool = True


class Order(NamedTuple):
    """A task from an orchestrator."""

    task_id: str
    tool_name: str | None
    payload: dict[str, Any]
    idempotency_key: str
    retry_count: int
    type: str
    trace: str | None = None


def task_out(order: Order) -> dict[str, str]:
    """The fields in the order of the protocol; unknown ones are empty."""
    return {
        "task_id": order.task_id,
        "tool_name": order.tool_name or "",
        "payload": _json(order.payload),
        "idempotency_key": order.idempotency_key,
        "retry_count": str(order.retry_count),
        "type": order.type,
        "trace": order.trace or "",
    }


def task_in(fields: Fields) -> Order:
    payload = _read(fields.get("payload") or "{}", "payload")
    if not isinstance(payload, dict):
        raise Malformed("payload: expected a JSON object")
    return Order(
        _required(fields, "task_id"),
        fields.get("tool_name") or None,
        payload,
        _required(fields, "idempotency_key"),
        _count(fields.get("retry_count") or "0"),
        fields.get("type") or "tool",
        fields.get("trace") or None,
    )


def result_out(result: Result) -> dict[str, str]:
    fields = {"task_id": result.task_id, "status": SUCCEEDED if result.succeeded else FAILED}
    fields["result"] = "" if result.data is None else _json(result.data)
    fields["error"] = result.error or ""
    fields["retryable"] = "true" if result.retry else "false"
    fields["worker"] = result.worker or ""
    return fields


def result_in(fields: Fields) -> Result:
    status = _required(fields, "status")
    if status not in {SUCCEEDED, FAILED}:
        raise Malformed(f"status: expected {SUCCEEDED} or {FAILED}, got {status!r}")
    data = _read(fields["result"], "result") if fields.get("result") else None
    task_id, worker = _required(fields, "task_id"), fields.get("worker") or None
    retry = (fields.get("retryable") or "true").lower() not in {"false", "0", "no"}
    return Result(task_id, worker, status == SUCCEEDED, data, fields.get("error") or None, retry)


def letter_out(task_id: str, body: Mapping[str, Any], error: str | None, retries: int, at: float) -> dict[str, str]:
    """A dead letter in the protocol's own fields."""
    return {
        "task_id": task_id,
        "tool_name": body.get("tool_name") or "",
        "payload": _json(body.get("payload") or {}),
        "error": error or "",
        "retry_count": str(retries),
        "failed_at": datetime.fromtimestamp(at, UTC).isoformat(),
    }


def marked(letter: Fields) -> dict[str, str]:
    """Mark a dead letter as written by the queue."""
    return {**letter, MARK: "queue"}


def refused_out(fields: Fields, stream: str, why: str, at: float) -> dict[str, str]:
    """An invalid entry as a dead letter: all its fields, and the reason."""
    body = {"tool_name": fields.get("tool_name"), "payload": {"stream": stream, "entry": dict(fields)}}
    return letter_out(fields.get("task_id", ""), body, f"malformed entry of {stream}: {why}", 0, at)


def letter_in(fields: Fields) -> Result | None:
    """A worker's report of a failure that must not be retried; None if the queue wrote the entry."""
    if MARK in fields:
        return None
    error = fields.get("error") or "dead-lettered by its worker"
    return Result(_required(fields, "task_id"), fields.get("worker") or None, succeeded=False, error=error, retry=False)


def _required(fields: Fields, name: str) -> str:
    if not fields.get(name):
        raise Malformed(f"{name} is missing")
    return fields[name]


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise Malformed(f"retry_count: expected a whole number of up to {MAX_DIGITS} digits, got {text[:50]!r}")
    return int(text)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(text: str, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(f"{name}: not JSON ({error})") from None
