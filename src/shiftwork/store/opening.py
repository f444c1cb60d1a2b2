"""Opens the store that a URL names."""

from __future__ import annotations

import time
from typing import Any

from shiftwork.core.errors import InputError, StoreUnsuitable
from shiftwork.store.store import Clock, Store


async def open_store(
    url: str, *, clock: Clock | None = None, migrate_schema: bool = True, pool_size: int = 10, **options: Any
) -> Store:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://:memory:` or `postgresql://user@host/database`."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from shiftwork.store.sqlite import SqliteStore  # noqa: PLC0415  # only what is used is loaded

        path = rest.removeprefix("/") if rest != ":memory:" else rest
        if not path:
            raise InputError("the URL names no file", where="url", mend="Write sqlite:///work.db.")
        return await SqliteStore.open(path, clock=clock or time.time, migrate_schema=migrate_schema, **options)
    if scheme in {"postgresql", "postgres"}:
        try:
            from shiftwork.store.postgres import PostgresStore  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise StoreUnsuitable(
                "the PostgreSQL driver is not installed", mend="pip install 'shiftwork[postgres]'"
            ) from error
        return await PostgresStore.open(url, clock=clock, migrate_schema=migrate_schema, pool_size=pool_size, **options)
    raise InputError(
        f"{scheme or url!r} is not a kind of store",
        where="url",
        mend="Use sqlite:///file.db or postgresql://…; a server at http://… is for `Client.open` or `open_queue`.",
    )
