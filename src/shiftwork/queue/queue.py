"""The queue as a program holds it: opened on a store, spoken to in one workspace by one caller."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any, Self

from shiftwork.artifacts.opening import open_depot
from shiftwork.copying.folder import open_folder
from shiftwork.queue import check
from shiftwork.queue.book import check_workspace
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.face.claiming import Claiming
from shiftwork.queue.face.handle import Shared
from shiftwork.queue.face.notifying import Notifying
from shiftwork.queue.face.operating import Operating
from shiftwork.queue.face.producing import Producing
from shiftwork.queue.face.protecting import Protecting
from shiftwork.queue.face.reading import Reading
from shiftwork.queue.face.spending import Spending
from shiftwork.queue.face.stepping import Stepping
from shiftwork.queue.face.storing import Storing
from shiftwork.queue.face.triggering import Triggering
from shiftwork.queue.face.waiting import Waiting
from shiftwork.queue.face.working import Working
from shiftwork.queue.secrets import open_vault
from shiftwork.store.opening import open_store
from shiftwork.store.store import Clock

PRIVATE_SINKS = "SHIFTWORK_PRIVATE_SINKS"


class Queue(
    Producing,
    Claiming,
    Working,
    Stepping,
    Waiting,
    Storing,
    Operating,
    Protecting,
    Reading,
    Spending,
    Notifying,
    Triggering,
):
    """A durable task queue on SQLite or PostgreSQL. Every method is one transaction, answered after its commit."""

    @classmethod
    async def open(  # noqa: PLR0913  # an option each
        cls,
        url: str = "sqlite:///shiftwork.db",
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
        **options: Any,
    ) -> Queue:
        """Open the queue at `sqlite:///path` or `postgresql://…`, making its schema where it does not exist.

        Artifacts lie in the folder or at the `s3://bucket/prefix` named here or by SHIFTWORK_ARTIFACTS, else beside the
        SQLite file. Snapshots lie in the folder named here or by SHIFTWORK_SNAPSHOTS, else beside the SQLite file, too.
        Notifications go to addresses that are not public only with `private_sinks` or SHIFTWORK_PRIVATE_SINKS=1.
        Secrets of sinks and hooks are encrypted with the key file `secrets_key` or SHIFTWORK_SECRETS_KEY_FILE.

        A workspace keeps the profile of the program that first writes to it; `profile` is recorded on opening.
        """
        check_workspace(workspace)
        depot = open_depot(artifacts, url)
        folder = open_folder(snapshots, url)
        vault = open_vault(secrets_key)
        store = await open_store(url, clock=clock, migrate_schema=migrate, **options)
        try:
            engine = Engine(store, profile or "standard", seed, depot, folder, vault)
            queue = cls(Shared(engine), workspace, Caller(actor))
            engine.private_sinks = private_sinks or os.environ.get(PRIVATE_SINKS, "") in {"1", "true", "yes"}
            in_force = (await queue.engine.book.get(store, workspace)).settings()
            if profile is not None:  # a program that names none may be there to look
                await store.run(lambda tx: queue.engine.book.add(tx, workspace))
            store.operation_max_sec = in_force.operation_max_sec
        except BaseException:
            await store.close()
            raise
        return queue

    @property
    def url(self) -> str:
        return self._engine.store.url

    @property
    def engine(self) -> Engine:
        """For duties and doors; programs need it not."""
        return self._engine

    def now(self) -> float:
        """The store's time: the same for every process of the fleet."""
        return self._engine.store.now()

    def in_workspace(self, name: str) -> Queue:
        """The same queue, another workspace."""
        return Queue(self._shared, check_workspace(name), self.caller)

    def as_caller(self, actor: str, request_id: str | None = None) -> Queue:
        """The same queue, spoken to by somebody else: `human:ada`, `agent:coder-1`, `cron:nightly`."""
        request_id = check.text(request_id, "request_id", 255)
        caller = self.caller._replace(actor=check.name(actor, "actor"), request_id=request_id)
        return Queue(self._shared, self.workspace, caller)

    def speaking_as(self, caller: Caller) -> Queue:
        """For doors, which know who comes in and to which workspace."""
        return Queue(self._shared, caller.workspace or self.workspace, caller)

    async def close(self) -> None:
        """Answer what is under way, then close the store."""
        await self._shared.parking.close()
        await self._shared.settle()
        await self._shared.tally.close()
        await self._engine.store.close()
        if self._engine.depot is not None:
            await self._engine.depot.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())
