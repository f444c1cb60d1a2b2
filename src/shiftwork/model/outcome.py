"""The token of a claim, and the outcome of a write."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.model import ids
from shiftwork.model.errors import FenceRequired, InputError, NotFound, ShiftworkError


class Token(NamedTuple):
    """A claim, as named by a write."""

    id: str
    fence: int

    @property
    def text(self) -> str:
        return ids.token(ids.show_task(self.id), self.fence)


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one write. In a batch each item has its own, with `error` if it was refused."""

    task_id: str
    status: str | None = None
    error: ShiftworkError | None = None
    repeated: bool = False
    data: dict[str, Any] | None = None

    @property
    def postponed(self) -> bool:
        """Neither answer nor error: the item must run again, in a transaction of its own."""
        return self.status is None and self.error is None

    def unwrap(self) -> Outcome:
        if self.error is not None:
            raise self.error
        return self


def unknown(error: NotFound) -> Outcome:
    """The outcome of a write whose token names no task."""
    return Outcome(error.facts["task_id"], error=error)


def parse_token(text: str) -> Token:
    parts = ids.split_token(text)
    if parts is None:
        raise FenceRequired(f"{text!r} is not a claim token", where="token")
    uuid = ids.parse(parts[0])
    if uuid is None:
        raise InputError(f"{parts[0]!r} is not a task id", where="token")
    return Token(uuid, parts[1])


def token_text(token: str | Token) -> str:
    return token if isinstance(token, str) else token.text


def task_of(token: str | Token) -> str:
    """The id of the claimed task, as the token spells it."""
    text = token_text(token)
    parts = ids.split_token(text)
    if parts is None:
        raise FenceRequired(f"{text!r} is not a claim token", where="token")
    return parts[0]
