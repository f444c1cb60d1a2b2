"""Errors as a model gets them: what happened, a hint, and what to do next."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.model.errors import (
    AgentUnavailable,
    AgentUnregistered,
    CircularDependency,
    ConflictError,
    DuplicateTask,
    FenceRequired,
    Forbidden,
    InputError,
    LeaseLost,
    NotFound,
    NotYourClaim,
    OperationTimeout,
    QueueFull,
    ReportRequired,
    RevisionChanged,
    ShiftworkError,
    SpawnLimit,
    StoreError,
    TooManyRequests,
    Unauthorized,
    UnknownDependency,
    VersionConflict,
    WrongState,
    from_dict,
)

# The first entry that matches an error's class counts.
NEXT: tuple[tuple[type[ShiftworkError], str], ...] = (
    (FenceRequired, "Call again with the exact `token` from `claim`, or call `claim` to get one."),
    (ReportRequired, "Call `complete` again with the same token and a `decision_report`."),
    (UnknownDependency, "Name a `key` of the same call or the id of an existing task, and call again."),
    (CircularDependency, "Remove one of these dependencies and call again."),
    (InputError, "Correct the argument and call the tool again."),
    (
        LeaseLost,
        "Stop working on this task and drop its token; do not submit its result. Call `claim` for other work.",
    ),
    (NotYourClaim, "Drop this token and call `claim` for work of your own."),
    (Unauthorized, "Do not retry. Tell the person you work for that this server needs a token."),
    (Forbidden, "Do not retry. Tell the person you work for which scope is missing."),
    (NotFound, "Check the id with `list`; do not invent ids."),
    (DuplicateTask, "Use the existing task; `get` shows its state."),
    (TooManyRequests, "Wait `retry_after` seconds and call again with the same arguments; do not call more often."),
    (QueueFull, "Do not submit more now. Try again after `retry_after` seconds."),
    (SpawnLimit, "Do this work yourself, under the token you hold."),
    (RevisionChanged, "Look at the task with `get` again before you decide."),
    (VersionConflict, "Look at the task with `get` again before you decide."),
    (WrongState, "Look at the task with `get`; the call is not possible in its status."),
    (AgentUnregistered, "Do not retry. Tell the person you work for that this agent must be registered."),
    (AgentUnavailable, "Stop claiming: someone has taken this agent out of service."),
    (ConflictError, "Look at the task with `get` before you continue."),
    (
        OperationTimeout,
        "Check with `get` or `list` whether the call had an effect; if not, call again with the same arguments.",
    ),
    (StoreError, "Wait some seconds and call again with the same arguments; what was acknowledged is safe."),
    (
        ShiftworkError,
        "Wait some seconds and call again with the same arguments; if the error persists, tell the person.",
    ),
)


def next_step(error: ShiftworkError) -> str:
    return next(step for kind, step in NEXT if isinstance(error, kind))


def as_data(error: ShiftworkError) -> dict[str, Any]:
    """The error as a program reads it."""
    plain: dict[str, Any] = msgspec.to_builtins(error.as_dict(), enc_hook=str)
    return {name: value for name, value in plain.items() if value is not None} | {"next": next_step(error)}


def sentence(error: ShiftworkError) -> str:
    """The error as text."""
    return f"{error} {next_step(error)}"


def internal() -> ShiftworkError:
    """An internal error, whose details are only in the log."""
    what = "internal error of the MCP server"
    return from_dict({"code": "internal", "what": what, "hint": "See the log of the MCP server."})
