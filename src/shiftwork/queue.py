"""A queue on a store, in one workspace and for one caller."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self

from shiftwork import config
from shiftwork.access.model import TokenInfo
from shiftwork.access.operations import find_token
from shiftwork.artifacts.connect import open_blob_store
from shiftwork.databases.late_store import LateStore
from shiftwork.databases.map_file import DatabaseMap, is_map, read_map
from shiftwork.databases.routed_executor import RoutedCall
from shiftwork.databases.routes import Routes
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.participants import PARTICIPANTS
from shiftwork.engine.secrets import open_secret_box
from shiftwork.model import check
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.errors import StoreError, StoreUnavailable
from shiftwork.operation.current import Opening
from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.local import Call, load_implementations
from shiftwork.operation.shared import Shared
from shiftwork.settings.cache import check_workspace
from shiftwork.snapshots.snapshot_folder import open_folder
from shiftwork.store import crash_points
from shiftwork.store.open_store import open_store
from shiftwork.store.store import Clock, Store

PRIVATE_SINKS = "SHIFTWORK_PRIVATE_SINKS"
load_implementations()


class Queue(AnyQueue):
    """A durable task queue on SQLite or PostgreSQL. Every method is one transaction, answered after its commit."""

    def __init__(self, shared: Shared | Routes, workspace: str, caller: Caller) -> None:
        self.executor: Call = (
            RoutedCall(shared, workspace, caller) if isinstance(shared, Routes) else Call(shared, workspace, caller)
        )
        self._shared = shared
        super().__init__(self.executor)

    @classmethod
    def open(  # an option each
        cls,
        url: str | None = None,
        *,
        workspace: str = "default",
        profile: str | None = None,
        actor: str = "system",
        clock: Clock | None = None,
        seed: int | None = None,
        migrate: bool = True,
        artifacts: str | None = None,
        snapshots: str | None = None,
        private_sinks: bool = False,
        secrets_key: str | None = None,
        pool_size: int = 10,
        patience: float = 10.0,
    ) -> Opening[Queue]:
        """Open the queue at `sqlite:///path` or `postgresql://…`, and create its tables if there are none.

        Await it, or use it with `async with`. `shiftwork+map:/path/map.toml` opens a queue on all databases in that
        file; a database that does not answer joins later. The default address is SHIFTWORK_STORE, then the nearest
        `shiftwork.toml`, then `sqlite:///shiftwork.db`.

        On PostgreSQL, `?schema=name` selects the schema of the tables, and up to `pool_size` connections are opened. On
        SQLite, a call waits up to `patience` seconds for writers of other processes.

        `artifacts` is a folder or an `s3://bucket/prefix`; the default is SHIFTWORK_ARTIFACTS, then a folder next to
        the SQLite file. `snapshots` is a folder; the default is SHIFTWORK_SNAPSHOTS, then next to the SQLite file.
        Notifications to addresses that are not public need `private_sinks` or SHIFTWORK_PRIVATE_SINKS=1. The key file
        `secrets_key`, or SHIFTWORK_SECRETS_KEY_FILE, encrypts the secrets of sinks and hooks.

        A workspace keeps the profile of the program that first writes to it; `profile` is recorded on opening.
        """

        async def opened() -> Queue:
            check_workspace(workspace)
            place = config.address().store.value or config.DEFAULT_STORE if url is None else url
            blob_store = open_blob_store(artifacts, place)
            folder = open_folder(snapshots, place)
            secrets = open_secret_box(secrets_key)

            def opening(address: str) -> Coroutine[Any, Any, Store]:
                return open_store(address, clock=clock, migrate_schema=migrate, pool_size=pool_size, patience=patience)

            async def share(store: Store) -> Shared:
                try:
                    engine = Engine(store, profile or "standard", seed, blob_store, folder, secrets, PARTICIPANTS)
                except BaseException:
                    await store.close()
                    raise
                engine.private_sinks = private_sinks or os.environ.get(PRIVATE_SINKS, "") in {"1", "true", "yes"}
                return Shared(engine)

            queue = cls(await _open(place, opening, share, clock), workspace, Caller(actor))
            return await queue._ready(record_profile=profile is not None)

        return Opening(opened)

    async def _ready(self, *, record_profile: bool) -> Self:
        """Apply the queue's settings; close it if that fails."""
        try:
            await self._use_settings(record_profile=record_profile)
        except BaseException:
            await self._shared.close()
            raise
        return self

    async def _use_settings(self, *, record_profile: bool) -> None:
        """Read the time limit of operations. Without a profile, nothing is written: the program may only read."""
        engine, workspace = self.engine, self.workspace
        try:
            in_force = (await engine.settings_cache.get(engine.store, workspace)).settings()
            if record_profile:
                await crash_points.named("open", engine.store.run(lambda tx: engine.settings_cache.add(tx, workspace)))
        except StoreUnavailable:
            if self.routes is None:
                raise
            return  # its database is unavailable; those of other workspaces may answer
        for each in self.databases():
            each.engine.store.operation_max_sec = in_force.operation_max_sec

    def databases(self) -> list[Queue]:
        """Return the queue on each of its databases separately, for work that all of them need, such as maintenance."""
        if isinstance(self._shared, Routes):
            return [Queue(shared, self.workspace, self.caller) for shared in self._shared.databases.values()]
        return [self]

    @property
    def routes(self) -> Routes | None:
        """The owning database of each workspace; None for a queue on one database."""
        return self._shared if isinstance(self._shared, Routes) else None

    async def find_token(self, secret: str) -> TokenInfo | None:
        """Find the valid token with this secret in any workspace; it is in the database that owns the workspace."""
        unavailable: StoreError | None = None
        names = [None] if self.routes is None else list(self.routes.databases)
        for name, each in zip(names, self.databases(), strict=True):
            try:
                if self.routes is not None and name is not None:
                    self.routes.require_database(name)
                found = await find_token(each.engine, secret)
            except StoreError as error:  # the token may be in another one
                unavailable = error
                continue
            if found is not None and self.in_workspace(found.workspace_id).engine is each.engine:
                return found
        if unavailable is not None:
            raise unavailable
        return None

    @property
    def url(self) -> str:
        return self.engine.store.url if self.routes is None else self.routes.map.url

    @property
    def caller(self) -> Caller:
        return self.executor.caller

    @property
    def engine(self) -> Engine:
        """Internal: used by maintenance jobs and the HTTP server."""
        return self.executor.engine

    def now(self) -> float:
        return self.engine.store.now()

    def in_workspace(self, name: str) -> Self:
        return type(self)(self._shared, check_workspace(name), self.caller)

    def as_caller(self, actor: str, request_id: str | None = None) -> Self:
        request_id = check.text(request_id, "request_id", MAX_NAME)
        caller = self.caller._replace(actor=check.name(actor, "actor"), request_id=request_id)
        return type(self)(self._shared, self.workspace, caller)

    def for_caller(self, caller: Caller) -> Queue:
        """Return the queue for an authenticated caller and its workspace."""
        return Queue(self._shared, caller.workspace or self.workspace, caller)

    async def close(self) -> None:
        await self._shared.close()
        if self.engine.blob_store is not None:
            await self.engine.blob_store.close()


async def _open(
    place: str,
    opening: Callable[[str], Awaitable[Store]],
    share: Callable[[Store], Awaitable[Shared]],
    clock: Clock | None,
) -> Shared | Routes:
    """Open the database at an address, or all databases of a map."""
    if is_map(place):
        return await _open_databases(read_map(place), opening, share, clock)
    return await share(await opening(place))


async def _open_databases(
    where: DatabaseMap,
    opening: Callable[[str], Awaitable[Store]],
    share: Callable[[Store], Awaitable[Shared]],
    clock: Clock | None,
) -> Routes:
    """Open the databases of a map concurrently, so that one that does not answer delays no other."""
    names = list(where.databases)
    found = await asyncio.gather(
        *(_open_late(name, address, opening, clock) for name, address in where.databases.items()),
        return_exceptions=True,
    )
    stores = {name: each for name, each in zip(names, found, strict=True) if not isinstance(each, BaseException)}
    opened: dict[str, Shared] = {}
    try:
        _require_one(where, found)
        opened = {name: await share(store) for name, store in stores.items()}
        routes = Routes(where, opened)
        await routes.open()
    except BaseException:
        for shared in opened.values():
            await shared.close()
        for name in stores.keys() - opened.keys():
            await stores[name].close()
        raise
    return routes


async def _open_late(name: str, address: str, opening: Callable[[str], Awaitable[Store]], clock: Clock | None) -> Store:
    """Open a database of a map, or return one that is opened later if it does not answer."""
    try:
        return await opening(address)
    except StoreUnavailable as error:
        if error.where is not None:  # the address is wrong: waiting does not help
            raise
        return LateStore(name, address, functools.partial(opening, address), clock)


def _require_one(where: DatabaseMap, found: Sequence[Store | BaseException]) -> None:
    """Raise the error of a database that cannot be used, or an error if none answers."""
    for each in found:
        if isinstance(each, BaseException):
            raise each
    if all(isinstance(store, LateStore) for store in found):
        names = ", ".join(where.databases)
        raise StoreUnavailable(f"no database of the map answers: {names}", where=where.url)
