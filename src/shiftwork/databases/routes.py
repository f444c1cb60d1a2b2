"""This process's view of which database owns which workspace: read from all databases, and again every second.

Correctness does not depend on how fresh it is: a database refuses writes to a workspace that has left it, and every
read checks ownership in its own transaction.
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
"""Calls to a database that has been down for this long are refused at once."""


class Routes:
    """The databases of a map, and the owner of each workspace."""

    def __init__(self, where: DatabaseMap, databases: dict[str, Shared]) -> None:
        self.map = where
        self.databases = databases
        self._unmoved: dict[str, str] = {}
        """The databases of workspaces that have never moved."""
        self._rows: dict[str, Sequence[Row]] = dict.fromkeys(databases, ())
        self._unread = set(databases)
        """Databases that have not answered yet, so that their workspaces are unknown."""
        self._owners: dict[str, str] = {}
        self._arriving: set[str] = set()
        """Workspaces whose rows are in the staging tables of their new database."""
        self._away_since: dict[str, float] = {}
        """Databases that do not answer, and since when by the loop's clock."""
        self._unusable: set[str] = set()
        """Databases that answer but have a workspace that another one also has."""
        self._refreshing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        for shared in databases.values():
            shared.one_of_many = True
            shared.engine.others = [each.engine for each in databases.values() if each is not shared]

    async def open(self) -> None:
        """Read the routes now, and again every second."""
        for name in self.databases:
            try:
                await self._read(name)
            except StoreUnavailable:
                self._away_since[name] = -math.inf
        await self.refresh()
        self._polling = asyncio.create_task(self._poll())

    async def _read(self, name: str) -> None:
        """Read the routes of a database, and its workspaces too until all databases have been read."""
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
                    hint="Copy one of the two queues into a separate schema, and remove it from the map.",
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
        """The name of a workspace's database; a new workspace is created in the default database.

        An unknown workspace may be in a database that has not answered yet.
        """
        new = min(self._unread, default=self.map.default)
        return self._owners.get(workspace) or self._unmoved.get(workspace) or new

    @property
    def all_read(self) -> bool:
        """Whether every database has answered since the process started, so that all workspaces are known."""
        return not self._unread

    def place(self, workspace: str) -> Shared:
        return self.databases[self.owner(workspace)]

    def check_database(self, name: str) -> str:
        if name not in self.databases:
            raise InputError(f"the map has no database {name!r}", hint=f"It has {', '.join(sorted(self.databases))}.")
        return name

    def known_in(self, database: str) -> list[str]:
        """The workspaces that a database owns, as far as this process knows."""
        known = self._unmoved.keys() | self._owners.keys()
        return sorted(workspace for workspace in known if self.owner(workspace) == database)

    async def report(self, name: str) -> DatabaseReport:
        """The state of a database, with the workspaces that it owns."""
        return await health.report(
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
        """Read all routes again; keep the last known ones of a database that does not answer."""
        async with self._refreshing:
            await asyncio.gather(*(self._refresh_one(name) for name in self.databases))
            self._assign_owners()
            for workspace in sorted(self._arriving):
                await self._activate(workspace)

    async def _refresh_one(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(health.PATIENCE_SEC):
                await self._read(name)
        except (StoreError, TimeoutError):
            self._away_since.setdefault(name, began)
        except InvalidConfig as error:  # detected when a database joins: the others are served
            self._away_since.setdefault(name, -math.inf)
            if name not in self._unusable:
                log.warning("ignoring the database %s of the map: %s", name, error)
            self._unusable.add(name)
        else:
            self._away_since.pop(name, None)

    def require_database(self, name: str) -> None:
        """Refuse a call at once if its database has been down for longer than a restart takes."""
        since = self._away_since.get(name)
        if since is not None and asyncio.get_running_loop().time() - since > AWAY_SEC:
            raise StoreUnavailable(f"the database {name} of the map does not answer")

    async def finish(self) -> None:
        """Process the last events of moved workspaces that the old jobs had not read; no call waits for it."""
        from shiftwork.databases import activation  # noqa: PLC0415  # needs the extra

        for workspace, owner in sorted(self._owners.items()):
            row = self.row(owner, workspace)
            if row is not None and row["state"] == "here" and row["first_event"] is not None:
                engine = self.databases[owner].engine
                await activation.finish(engine, workspace, row["first_event"], row["last_event"])

    def _assign_owners(self) -> None:
        """The route with the highest generation names the owner; a database that was left names its successor."""
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
                shared.record_move(workspace)
            shared.left &= left

    async def _activate(self, workspace: str) -> None:
        """Complete a move that switched but was not finished; any process can do this."""
        from shiftwork.databases import activation  # noqa: PLC0415  # needs the extra

        try:
            await activation.activate(self.place(workspace).engine.store, workspace)
            self._arriving.discard(workspace)
        except ShiftworkError as error:
            log.warning(
                "the workspace %s is not active in the database %s: %s", workspace, self.owner(workspace), error
            )

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
