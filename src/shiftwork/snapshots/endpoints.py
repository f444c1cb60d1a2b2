"""Opens the queue that a URL names as one end of a copy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import ModuleType

from shiftwork.model.errors import InputError, StoreUnsuitable
from shiftwork.snapshots.row_batches import Source, Target


def reading(url: str) -> AbstractAsyncContextManager[Source]:
    """Open a queue to read all of it at one moment."""
    opened: AbstractAsyncContextManager[Source] = _kind(url).reading(url)
    return opened


def writing(url: str) -> AbstractAsyncContextManager[Target]:
    """Open a queue to fill, with a schema but no content; commits everything at the end, or nothing."""
    opened: AbstractAsyncContextManager[Target] = _kind(url).writing(url)
    return opened


def _kind(url: str) -> ModuleType:
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from shiftwork.snapshots import sqlite_copy  # noqa: PLC0415  # loaded only if used

        return sqlite_copy
    if scheme in {"postgresql", "postgres"}:
        try:
            from shiftwork.snapshots import postgres_copy  # noqa: PLC0415  # an optional extra
        except ImportError as error:
            raise StoreUnsuitable(
                "the PostgreSQL driver is not installed", hint="pip install 'shiftwork[postgres]'"
            ) from error
        return postgres_copy
    raise InputError(
        f"{scheme or url!r} is not a kind of store", where="store", hint="Use sqlite:///file.db or postgresql://…"
    )
