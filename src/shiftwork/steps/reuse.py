"""Whether a task's finished steps are still valid after the task was changed."""

from __future__ import annotations

from typing import Any

_WORK = ("title", "tool_name", "payload", "spec", "output")


def is_same_work(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two bodies of a task ask for the same; who may do it, when and at what cost is not the work."""
    return _work(before) == _work(after)


def _work(body: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in (body.get("spec") or {}).items() if name != "constraints"}
    return {name: body.get(name) or None for name in _WORK} | {"spec": spec}
