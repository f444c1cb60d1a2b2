"""The exit codes of every command, in one place."""

from __future__ import annotations

from enum import IntEnum

from shiftwork.model.errors import (
    ConflictError,
    Forbidden,
    InputError,
    LifespanFailed,
    NotFound,
    OperationTimeout,
    Overloaded,
    ResultTimeout,
    ShiftworkError,
    StoreError,
    TaskCancelled,
    TaskFailed,
    TooManyRequests,
    Unauthorized,
)


class ExitCode(IntEnum):
    """Exit codes that a shell script can distinguish."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    FORBIDDEN = 6
    NO_PROOF = 7
    TASK_FAILED = 8
    TASK_CANCELLED = 9
    NOT_ENDED = 10
    INTERRUPTED = 130


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed: `doctor` found an error, `migrate --check` found work to do, `claim` did not get "
    "the lock of the queue's file, the answer could not be written, or a person declined",
    ExitCode.USAGE: "the command line or its input is invalid; nothing was changed",
    ExitCode.NOT_FOUND: "there is no such task, DAG, agent, dead letter, effect, alert or token",
    ExitCode.CONFLICT: "the request is valid, but the state of the queue forbids it",
    ExitCode.UNAVAILABLE: "the store is unavailable: it is missing, too old, too new, locked, full, "
    "read-only or damaged",
    ExitCode.FORBIDDEN: "the server does not accept the token, or it lacks the scope",
    ExitCode.NO_PROOF: "a fault that `prove` should have injected did not happen, so it is not proven",
    ExitCode.TASK_FAILED: "the task or DAG whose result was waited for failed",
    ExitCode.TASK_CANCELLED: "it was cancelled",
    ExitCode.NOT_ENDED: "it has not ended within the time given to `--wait`",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}

_CODES: tuple[tuple[type[ShiftworkError], ExitCode], ...] = (
    (InputError, ExitCode.USAGE),
    (Unauthorized, ExitCode.FORBIDDEN),
    (Forbidden, ExitCode.FORBIDDEN),
    (NotFound, ExitCode.NOT_FOUND),
    (TaskFailed, ExitCode.TASK_FAILED),
    (TaskCancelled, ExitCode.TASK_CANCELLED),
    (ResultTimeout, ExitCode.NOT_ENDED),
    (ConflictError, ExitCode.CONFLICT),
    (StoreError, ExitCode.UNAVAILABLE),
    (OperationTimeout, ExitCode.UNAVAILABLE),
    (TooManyRequests, ExitCode.CONFLICT),
    (Overloaded, ExitCode.UNAVAILABLE),
    (LifespanFailed, ExitCode.UNAVAILABLE),
)


def code_of(error: ShiftworkError) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
