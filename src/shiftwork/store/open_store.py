"""Opens the store that a URL names."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shiftwork.model.errors import InputError, StoreUnsuitable
from shiftwork.model.heartbeat_grace import Stall
from shiftwork.store.migrate import Allowed
from shiftwork.store.store import Clock, Store

if TYPE_CHECKING:
    from shiftwork.store.postgres import PostgresStore
    from shiftwork.store.sqlite import SqliteStore


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    migrate_schema: Allowed = True,
    pool_size: int = 10,
    patience: float = 10.0,
) -> Store:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://:memory:` or `postgresql://user@host/database`."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from shiftwork.store.sqlite import SqliteStore  # noqa: PLC0415  # only what is used is loaded

        path = rest.removeprefix("/") if rest != ":memory:" else rest
        if not path:
            raise InputError("the URL names no file", where="url", hint="Write sqlite:///work.db.")
        lite = await SqliteStore.open(path, clock=clock or time.time, migrate_schema=migrate_schema, patience=patience)
        return await _rested(lite)
    if scheme in {"postgresql", "postgres"}:
        try:
            from shiftwork.store.postgres import PostgresStore  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise StoreUnsuitable(
                "the PostgreSQL driver is not installed", hint="pip install 'shiftwork[postgres]'"
            ) from error
        server = await PostgresStore.open(url, clock=clock, migrate_schema=migrate_schema, pool_size=pool_size)
        return await _rested(server)
    raise InputError(
        f"{scheme or url!r} is not a kind of store",
        where="url",
        hint="Use sqlite:///file.db or postgresql://…; a server at http://… needs `Client.open` or `open_queue`.",
    )


async def _rested(store: SqliteStore | PostgresStore) -> Store:
    """Record a restore as an outage: no heartbeat could arrive here before, so silence counts from then on."""
    try:
        row = await store.read(lambda tx: tx.one("restored_at"))
    except BaseException:
        await store.close()
        raise
    if row is not None:
        store.stall_detector.forgive(Stall(row["last_run_at"], row["last_run_at"], "the queue was restored"))
    return store
