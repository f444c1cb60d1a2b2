"""Opens the queue that a URL names as one end of a copy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import ModuleType

from shiftwork.copying.content import Source, Target
from shiftwork.core.errors import InputError, StoreUnsuitable


def reading(url: str) -> AbstractAsyncContextManager[Source]:
    """A queue to read, all of it as it stands at one moment."""
    opened: AbstractAsyncContextManager[Source] = _kind(url).reading(url)
    return opened


def writing(url: str) -> AbstractAsyncContextManager[Target]:
    """A queue to fill, which has the schema and no content; all of it is kept at the end, or nothing."""
    opened: AbstractAsyncContextManager[Target] = _kind(url).writing(url)
    return opened


def _kind(url: str) -> ModuleType:
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from shiftwork.copying import sqlite  # noqa: PLC0415  # only what is used is loaded

        return sqlite
    if scheme in {"postgresql", "postgres"}:
        try:
            from shiftwork.copying import postgres  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise StoreUnsuitable(
                "the PostgreSQL driver is not installed", mend="pip install 'shiftwork[postgres]'"
            ) from error
        return postgres
    raise InputError(
        f"{scheme or url!r} is not a kind of store", where="store", mend="Use sqlite:///file.db or postgresql://…"
    )
