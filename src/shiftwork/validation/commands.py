"""The tests' command of a task, in a module of its own so that workers need not load the rest of validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shiftwork.model.errors import InputError

WHERE = "output.validation_schema"


class Trial(NamedTuple):
    """What `test-pass` runs: a line for the shell, or a program with its arguments."""

    command: str | list[str]
    timeout_sec: float | None = None


def command_of(schema: Any) -> Trial:
    """The command of `test-pass`: a line, or `{"command": line or list, "timeout_sec": number}`."""
    fields = schema if isinstance(schema, dict) else {"command": schema}
    command: Any = fields.get("command")
    limit: Any = fields.get("timeout_sec")
    words = command if isinstance(command, list) else [command]
    usable = words and all(isinstance(word, str) and "\0" not in word for word in words) and words[0].strip()
    limited = limit is None or (isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0)
    if not usable or not limited or fields.keys() - Trial._fields:
        what = 'test-pass takes a command, or {"command": line or list of words, "timeout_sec": more than 0}'
        raise InputError(what, where=WHERE)
    return Trial(command, limit)


def tests_of(output: Mapping[str, Any] | None) -> Trial | None:
    """The command that a task's output must pass; None without one."""
    asked = output is not None and output.get("validation") == "test-pass"
    schema = output.get("validation_schema") if output is not None and asked else None
    return None if schema is None else command_of(schema)
