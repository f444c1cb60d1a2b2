"""Lines of a task's log, as they are written and read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.outcome import Token
from shiftwork.model.task import Fields, Name

MAX_LINE = 10_000
"""The maximum length of a line, in characters."""

MAX_LINES = 1_000
"""The maximum number of lines per call."""

MAX_LOG = 1_000_000
"""The maximum length of a task's log over all attempts, in characters. Its last line says that it is full."""

LogLevel = Literal["debug", "info", "warning", "error"]


class NewLogLine(Fields, kw_only=False):
    """A line to add to a task's log."""

    text: Annotated[str, Meta(max_length=MAX_LINE)]
    level: LogLevel = "info"
    at: Annotated[float | None, Meta(description="When it was written; by default, when it arrives.")] = None


Lines = Annotated[list[NewLogLine], Meta(min_length=1, max_length=MAX_LINES)]


class NewLog(Fields, kw_only=False):
    """Lines under the token of a claim, for `batch.log`."""

    token: str | Token
    lines: Lines


class NewLogItem(Fields, kw_only=False):
    """The same in a request, where a token is text."""

    token: Name
    lines: Lines


class LogLine(msgspec.Struct, frozen=True):
    """One line of a task's log; lines that were sent together share their `seq`."""

    seq: int
    at: float
    level: LogLevel
    kind: Literal["log", "text", "tool_call", "error"]
    """`log` for a line of the handler; otherwise a command agent's text, tool call or error."""
    text: str
    fence: int | None
    """The attempt's fence, as in its claim's token."""
    agent_id: str
    data: dict[str, Any] | None = None


class LogPage(msgspec.Struct, frozen=True):
    """Lines after a cursor; continue from `next`, even if there are none."""

    lines: list[LogLine]
    next: int
    status: str
    """The task's status as of these lines."""
    ended: bool
    """Whether the task has ended and these are its last lines."""
