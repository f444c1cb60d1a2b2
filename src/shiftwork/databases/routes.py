"""Which database owns which workspace, as this process knows it: read from all of them, and again every second.

Nothing depends on how fresh it is. A database refuses writes to a workspace that has left it, and every read asks in
its own transaction whether it has.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from shiftwork.databases import health
from shiftwork.databases.health import DatabaseReport
from shiftwork.databases.map_file import DatabaseMap
from shiftwork.model.errors import (
    InputError,
    InvalidConfig,
    ShiftworkError,
    StoreError,
    StoreUnavailable,
    WorkspaceMoving,
)
from shiftwork.operation.shared import Shared
from shiftwork.store.store import Row, Tx

log = logging.getLogger("shiftwork.databases")
REFRESH_SEC = 1.0
AWAY_SEC = 5.0
"""A call waits as usual for a database that does not answer; after this long it is refused at once."""


class Routes:
    """The databases of a map, and the owner of each workspace."""

    def __init__(self, where: DatabaseMap, databases: dict[str, Shared]) -> None:
        self.map = where
        self.databases = databases
        self._unmoved: dict[str, str] = {}
        """Where workspaces are that have never moved."""
        self._rows: dict[str, Sequence[Row]] = dict.fromkeys(databases, ())
        self._unread = set(databases)
        """Databases that have not answered yet: which workspaces they have is not known."""
        self._owners: dict[str, str] = {}
        self._arriving: set[str] = set()
        """Workspaces whose rows are in their new database, but not yet in its tables."""
        self._away_since: dict[str, float] = {}
        """Databases that do not answer, and since when on the loop's clock."""
        self._unusable: set[str] = set()
        """Databases that answer, and have a workspace that another one has."""
        self._refreshing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        for shared in databases.values():
            shared.one_of_many = True
            shared.engine.others = [each.engine for each in databases.values() if each is not shared]

    async def open(self) -> None:
        """Read who owns what, and read it again every second."""
        for name in self.databases:
            try:
                await self._read(name)
            except StoreUnavailable:
                self._away_since[name] = -math.inf
        await self.refresh()
        self._polling = asyncio.create_task(self._poll())

    async def _read(self, name: str) -> None:
        """Read the routes of a database; with its workspaces until all databases have been read."""
        read = self.databases[name].engine.store.read
        if not self._unread:
            self._rows[name] = await read(lambda tx: tx.all("read_routes"))
            return
        routes, names = await read(_routes_and_names)
        for workspace in names - {row["workspace"] for row in routes}:
            other = self._unmoved.get(workspace, name)
            if other != name and self._owners.get(workspace, other) == other:
                raise InvalidConfig(
                    f"the workspace {workspace!r} is in two databases, {other} and {name}",
                    where=self.map.url,
                    hint="Copy one of the two queues into a schema of its own, and leave it out of the map.",
                )
        self._unmoved |= dict.fromkeys(names - {row["workspace"] for row in routes}, name)
        self._rows[name] = routes
        self._unread.discard(name)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        for shared in self.databases.values():
            await shared.close()

    def owner(self, workspace: str) -> str:
        """The name of the database that a workspace is in; a new one is made in the default database.

        One that no database is known to have may be in a database that has not answered yet.
        """
        new = min(self._unread, default=self.map.default)
        return self._owners.get(workspace) or self._unmoved.get(workspace) or new

    @property
    def all_read(self) -> bool:
        """Whether every database has answered since the process started, so that each workspace is known."""
        return not self._unread

    def place(self, workspace: str) -> Shared:
        return self.databases[self.owner(workspace)]

    def check_database(self, name: str) -> str:
        if name not in self.databases:
            raise InputError(f"the map has no database {name!r}", hint=f"It has {', '.join(sorted(self.databases))}.")
        return name

    def known_in(self, database: str) -> list[str]:
        """The workspaces that a database owns, as far as this process has heard of them."""
        known = self._unmoved.keys() | self._owners.keys()
        return sorted(workspace for workspace in known if self.owner(workspace) == database)

    async def look(self, name: str) -> DatabaseReport:
        """The state of a database, with the workspaces that it owns."""
        return await health.look(
            self.databases[name].engine,
            name,
            is_default=name == self.map.default,
            is_owned=lambda workspace: self.owner(workspace) == name,
            known=self.known_in(name),
        )

    def require_arrived(self, workspace: str) -> None:
        if workspace in self._arriving:
            raise WorkspaceMoving(f"the workspace {workspace!r} is being moved to the database {self.owner(workspace)}")

    def row(self, database: str, workspace: str) -> Row | None:
        return next((row for row in self._rows[database] if row["workspace"] == workspace), None)

    async def refresh(self) -> None:
        """Ask every database; what one that is away said last still counts."""
        async with self._refreshing:
            await asyncio.gather(*(self._ask(name) for name in self.databases))
            self._judge()
            for workspace in sorted(self._arriving):
                await self._activate(workspace)

    async def _ask(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(health.PATIENCE_SEC):
                await self._read(name)
        except (StoreError, TimeoutError):
            self._away_since.setdefault(name, began)
        except InvalidConfig as error:  # found when it joins: the others are served
            self._away_since.setdefault(name, -math.inf)
            if name not in self._unusable:
                log.warning("the database %s of the map is not used: %s", name, error)
            self._unusable.add(name)
        else:
            self._away_since.pop(name, None)

    def require_database(self, name: str) -> None:
        """Refuse at once what a database would do that has been away for longer than a restart takes."""
        since = self._away_since.get(name)
        if since is not None and asyncio.get_running_loop().time() - since > AWAY_SEC:
            raise StoreUnavailable(f"the database {name} of the map does not answer")

    async def finish(self) -> None:
        """Read the last events of workspaces that have come for the jobs that had not; no call waits for it."""
        from shiftwork.databases import arrival  # noqa: PLC0415  # needs the extra

        for workspace, owner in sorted(self._owners.items()):
            row = self.row(owner, workspace)
            if row is not None and row["state"] == "here" and row["first_event"] is not None:
                engine = self.databases[owner].engine
                await arrival.finish(engine, workspace, row["first_event"], row["last_event"])

    def _judge(self) -> None:
        """The highest generation says who owns a workspace: the one that it left says to whom it went."""
        newest: dict[str, tuple[int, str]] = {}
        for name, rows in self._rows.items():
            for row in rows:
                owner = row["peer"] if row["state"] == "left" else name
                if row["state"] != "arriving" and owner in self.databases:
                    newest[row["workspace"]] = max(newest.get(row["workspace"], (0, "")), (row["generation"], owner))
        self._owners = {workspace: owner for workspace, (_, owner) in newest.items()}
        self._arriving = {
            workspace
            for workspace, owner in self._owners.items()
            if (there := self.row(owner, workspace)) is not None and there["state"] == "arriving"
        }
        for name, shared in self.databases.items():
            left = {workspace for workspace, owner in self._owners.items() if owner != name}
            for workspace in left - shared.left:
                shared.note_left(workspace)
            shared.left &= left

    async def _activate(self, workspace: str) -> None:
        """A move that was decided and not finished: any process may do what is left of it."""
        from shiftwork.databases import arrival  # noqa: PLC0415  # needs the extra

        try:
            await arrival.activate(self.place(workspace).engine.store, workspace)
            self._arriving.discard(workspace)
        except ShiftworkError as error:
            log.warning("the workspace %s is not in the database %s yet: %s", workspace, self.owner(workspace), error)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SEC)
            try:
                await self.refresh()
                await self.finish()
            except Exception:
                log.exception("cannot read which database owns which workspace")


async def _routes_and_names(tx: Tx) -> tuple[Sequence[Row], set[str]]:
    return await tx.all("read_routes"), {row["name"] for row in await tx.all("list_workspaces")}
