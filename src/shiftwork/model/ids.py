"""Ids: monotonic UUIDv7, stored as UUID, shown as `task_` + 26 Crockford characters of the same 128 bits."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _CROCKFORD for b in _CROCKFORD]
_SHIFTS = range(100, -1, -10)
_TO_BASE32 = str.maketrans(_CROCKFORD, "0123456789abcdefghijklmnopqrstuv")  # the digits int() knows
_SHOWN = re.compile(r"(?:(task|dag)_)?([0-7][0-9A-HJKMNP-TV-Z]{25})", re.IGNORECASE)
_SHORT = re.compile(r"(?:…|\.\.\.)?([0-9A-HJKMNP-TV-Z]{6,25})", re.IGNORECASE)
"""The shortest ending that is accepted, as printed everywhere: a shorter one would often match other ids."""
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)


_TAIL = (1 << 48) - 1
"""The last group of digits of a UUID, which counts up inside a batch."""

REMEMBERED = 16_384
"""Cached conversions of ids: a claim's id returns with its heartbeat and its result."""


class IdMaker:
    """Makes UUIDs that sort by creation, also within a millisecond and when the clock steps back."""

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._last = 0

    def make(self, now: float) -> str:
        return self.make_many(now, 1)[0]

    def make_many(self, now: float, count: int) -> list[str]:
        """`count` new UUIDs, each greater than all before. `now` is seconds since 1970."""
        with self._lock:
            # 48 bits of milliseconds, then 74 free bits; counting up inside them keeps the order.
            fresh = (int(now * 1000) & (1 << 48) - 1) << 74
            noise = int.from_bytes(self._random(9), "big") >> 6
            first = max(fresh | noise, self._last + 1)
            self._last = first + count - 1
        start = first & _TAIL
        if start + count > _TAIL:  # counting up would carry into the digits before
            return [_as_uuid7(first + i) for i in range(count)]
        head = _as_uuid7(first)[:-12]
        return [f"{head}{tail:012x}" for tail in range(start, start + count)]


def first_at(now: float) -> str:
    """The lowest UUID of a time: all created earlier are lower."""
    return _as_uuid7((max(0, int(now * 1000)) & (1 << 48) - 1) << 74)


def _as_uuid7(value: int) -> str:
    """Lay 122 ordered bits around the version and variant fields of a UUIDv7."""
    bits = (value >> 74) << 80 | 0x7 << 76 | (value >> 62 & 0xFFF) << 64 | 0b10 << 62 | value & (1 << 62) - 1
    return _dashed(f"{bits:032x}")


@lru_cache(REMEMBERED)
def show_task(uuid: str) -> str:
    """`task_01J…`: how a task id is written."""
    return "task_" + _crockford(uuid)


def show_tasks(uuids: Iterable[str]) -> list[str]:
    """The same for the ids of a batch."""
    return [
        f"task_{_head(uuid[:-5])}{_PAIRS[(tail := int(uuid[-5:], 16)) >> 10]}{_PAIRS[tail & 1023]}" for uuid in uuids
    ]


def show_dag(uuid: str) -> str:
    """`dag_01J…`: how a DAG id is written."""
    return "dag_" + _crockford(uuid)


def show_standalone(uuid: str) -> tuple[str, str]:
    """The task id and the DAG id of a task that is a DAG of its own."""
    digits = _crockford(uuid)
    return "task_" + digits, "dag_" + digits


def show_delivery(uuid: str) -> str:
    """`msg_01J…`: how the id of a notification is written; every retry sends the same one."""
    return "msg_" + _crockford(uuid)


def is_delivery(text: str) -> bool:
    """Whether the text is the id of a notification in its stored form."""
    kind, _, digits = text.partition("_")
    return kind == "msg" and digits == digits.upper() and _SHOWN.fullmatch(digits) is not None


def _crockford(uuid: str) -> str:
    """The last four characters are the last 20 bits; ids made together share the rest."""
    tail = int(uuid[-5:], 16)
    return _head(uuid[:-5]) + _PAIRS[tail >> 10] + _PAIRS[tail & 1023]


@lru_cache(256)
def _head(digits: str) -> str:
    bits = int(digits.replace("-", ""), 16)
    return "".join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])


@lru_cache(REMEMBERED)
def parse(text: str) -> str | None:
    """The UUID of either written form, or None if the text is a caller's own name for a task."""
    if shown := _SHOWN.fullmatch(text):
        return _dashed(f"{int(shown[2].upper().translate(_TO_BASE32), 32):032x}")
    if _UUID.fullmatch(text):
        return _dashed(text.replace("-", "").lower())
    return None


def tail(uuid: str) -> str:
    """The written id reversed: a reversed short id is a prefix of it."""
    return _crockford(uuid)[::-1]


def parse_short(text: str) -> str | None:
    """The end of a written id, reversed; None if the text cannot be one. `…` may mark the omitted part."""
    short = _SHORT.fullmatch(text)
    return short[1].upper()[::-1] if short else None


def shown(name: str) -> str:
    """The written form of a task named by its id, in either form, or by a name that its submitter chose."""
    uuid = parse(name)
    return show_task(uuid) if uuid else name


def _dashed(h: str) -> str:
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def token(task_id: str, fence: int) -> str:
    """The claim token: `<task id>.<fence>`; `assignment_id` to the co-scientist's clients."""
    return f"{task_id}.{fence}"


def split_token(text: str) -> tuple[str, int] | None:
    """Task id (as written) and fence of a claim token, or None when the text is not one."""
    name, dot, fence = str(text).rpartition(".")
    if not dot or not name or not fence.isascii() or not fence.isdigit() or len(fence) > 18:
        return None
    return name, int(fence)
