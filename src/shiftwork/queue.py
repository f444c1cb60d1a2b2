"""A queue on a store: opened in one workspace, for one caller."""

from __future__ import annotations

import os
from typing import Self

from shiftwork import config
from shiftwork.artifacts.connect import open_blob_store
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.participants import PARTICIPANTS
from shiftwork.engine.secrets import open_secret_box
from shiftwork.model import check
from shiftwork.model.bounds import MAX_NAME
from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.local import Call, Shared, load_implementations
from shiftwork.operation.opening import Opening
from shiftwork.settings.cache import check_workspace
from shiftwork.snapshots.snapshot_folder import open_folder
from shiftwork.store.opening import open_store
from shiftwork.store.store import Clock

PRIVATE_SINKS = "SHIFTWORK_PRIVATE_SINKS"
load_implementations()


class Queue(AnyQueue):
    """A durable task queue on SQLite or PostgreSQL. Every method is one transaction, answered after its commit."""

    def __init__(self, shared: Shared, workspace: str, caller: Caller) -> None:
        self.executor = Call(shared, workspace, caller)
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
        """Open the queue at `sqlite:///path` or `postgresql://…`; creates its tables if there are none.

        On PostgreSQL `?schema=name` keeps them in that schema; up to `pool_size` connections are opened. On SQLite a
        call waits `patience` seconds for writers of other processes.

        Without an address it is that of SHIFTWORK_STORE, of the nearest `shiftwork.toml`, or `sqlite:///shiftwork.db`.

        Await it, or use it with `async with`. Artifacts are stored in the folder or at the `s3://bucket/prefix` named
        here or by SHIFTWORK_ARTIFACTS, else beside the SQLite file; snapshots in the folder named here or by
        SHIFTWORK_SNAPSHOTS, else beside the SQLite file. Notifications go to addresses that are not public only with
        `private_sinks` or SHIFTWORK_PRIVATE_SINKS=1. Secrets of sinks and hooks are encrypted with the key file
        `secrets_key` or SHIFTWORK_SECRETS_KEY_FILE.

        A workspace keeps the profile of the program that first writes to it; `profile` is recorded on opening.
        """

        async def opened() -> Queue:
            check_workspace(workspace)
            place = config.address().store.value or config.DEFAULT_STORE if url is None else url
            blob_store = open_blob_store(artifacts, place)
            folder = open_folder(snapshots, place)
            secrets = open_secret_box(secrets_key)
            store = await open_store(place, clock=clock, migrate_schema=migrate, pool_size=pool_size, patience=patience)
            try:
                engine = Engine(store, profile or "standard", seed, blob_store, folder, secrets, PARTICIPANTS)
                engine.private_sinks = private_sinks or os.environ.get(PRIVATE_SINKS, "") in {"1", "true", "yes"}
                return await cls._on(engine, workspace, actor, record_profile=profile is not None)
            except BaseException:
                await store.close()
                raise

        return Opening(opened)

    @classmethod
    async def _on(cls, engine: Engine, workspace: str, actor: str, *, record_profile: bool) -> Queue:
        """A queue on an open store. A program that names no profile may only read."""
        store = engine.store
        queue = cls(Shared(engine), workspace, Caller(actor))
        in_force = (await engine.settings_cache.get(store, workspace)).settings()
        if record_profile:
            await store.run(lambda tx: engine.settings_cache.add(tx, workspace))
        store.operation_max_sec = in_force.operation_max_sec
        return queue

    @property
    def url(self) -> str:
        return self.engine.store.url

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
        return type(self)(self.executor.shared, check_workspace(name), self.caller)

    def as_caller(self, actor: str, request_id: str | None = None) -> Self:
        request_id = check.text(request_id, "request_id", MAX_NAME)
        caller = self.caller._replace(actor=check.name(actor, "actor"), request_id=request_id)
        return type(self)(self.executor.shared, self.workspace, caller)

    def speaking_as(self, caller: Caller) -> Queue:
        """For doors, which know who comes in and to which workspace."""
        return Queue(self.executor.shared, caller.workspace or self.workspace, caller)

    async def close(self) -> None:
        await self.executor.shared.claim_waiters.close()
        await self.executor.shared.result_waiters.close()
        await self.executor.shared.drain()
        await self.executor.shared.tally.close()
        await self.engine.store.close()
        if self.engine.blob_store is not None:
            await self.engine.blob_store.close()
