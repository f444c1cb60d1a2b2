"""What whoever wants to be told does: sinks, and the deliveries to them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from shiftwork.core import ids
from shiftwork.core.errors import ConflictError, InputError
from shiftwork.queue import check
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.notification import deliveries, sinks
from shiftwork.queue.notification.deliveries import STATUSES, Delivery, Status, Which
from shiftwork.queue.notification.sinks import AddedSink, NewSink, Sink, SinkChanges


class Notifying(Handle):
    """Verbs about notifications out of the queue."""

    # -- sinks -----------------------------------------------------------------------------------------------------

    async def add_sink(self, sink: NewSink | Mapping[str, Any] | None = None, **fields: Any) -> AddedSink:
        """Tell a webhook, a Slack-compatible one or an e-mail address of what happens from now on.

        The secret that a webhook is signed with stands in this answer and nowhere else.
        """
        given = check.read(fields if sink is None else sink, NewSink, "sink")
        new, sink_id = sinks.checked(given), f"sink_{secrets.token_hex(8)}"
        added = await self._run(sinks.add, self.workspace, sink_id, new)
        if added.id != sink_id:
            raise ConflictError(
                f"this request has added the sink {added.name!r} already, whose secret is not kept",
                sink=added.name,
                mend="Change its secret, or remove it and add it under a new key.",
            )
        return AddedSink(added, new.secret if given.secret is None else None)

    async def sinks(self) -> list[Sink]:
        """All sinks of this workspace by name, without their secrets."""
        return await self._read(lambda tx: sinks.read_all(tx, self.workspace))

    async def sink(self, name: str) -> Sink:
        """One sink, and how it fares."""
        checked = check.name(name, "sink")
        return await self._read(lambda tx: sinks.read(tx, self.workspace, checked))

    async def update_sink(
        self, name: str, changes: SinkChanges | Mapping[str, Any] | None = None, **fields: Any
    ) -> Sink:
        """Change where a sink is, what it is signed with or what it wants; what waits for it goes there, too."""
        checked = check.fit(check.read(fields if changes is None else changes, SinkChanges, "changes"), "changes")
        if all(value is UNSET for value in msgspec.structs.astuple(checked)):
            raise InputError("nothing to change", where="change")
        if checked.wants is not UNSET:
            sinks.check_wants(checked.wants)
        return await self._run(sinks.update, self.workspace, check.name(name, "sink"), checked)

    async def pause_sink(self, name: str, reason: str | None = None) -> Sink:
        """Send nothing to a sink until it is resumed; it is told then of what happened meanwhile."""
        return await self._run(sinks.pause, self.workspace, check.name(name, "sink"), check.text(reason, "reason"))

    async def resume_sink(self, name: str) -> Sink:
        """Send to a sink again, whoever or whatever paused it."""
        return await self._run(sinks.resume, self.workspace, check.name(name, "sink"))

    async def remove_sink(self, name: str) -> bool:
        """Forget a sink with all that waits for it; False where there was none."""
        return await self._run(sinks.remove, self.workspace, check.name(name, "sink"))

    async def test_sink(self, name: str) -> Delivery:
        """Send a test message; the delivery tells whether it arrives."""
        return await self._run(deliveries.test, self.workspace, check.name(name, "sink"))

    # -- deliveries ------------------------------------------------------------------------------------------------

    async def deliveries(
        self,
        sink: str | None = None,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Delivery]:
        """Notifications to all sinks or to one, newest first; go on `after` the id of the last."""
        if status is not None:
            check.one_of(status, STATUSES, "status")
        named, cursor = check.text(sink, "sink", 255), check.text(after, "after", 255)
        if cursor is not None and not ids.is_delivery(cursor):
            raise InputError(f"{after!r} is not the id of a notification", where="after")
        which = Which(named, status, cursor, check.page(limit))
        return await self._read(lambda tx: deliveries.read_page(tx, self.workspace, which))

    async def delivery(self, delivery_id: str) -> Delivery:
        """One notification with all that is sent."""
        checked = check.name(delivery_id, "delivery_id")
        return await self._read(lambda tx: deliveries.read_one(tx, self.workspace, checked))

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Send again what was given up or sent, with the same id."""
        return await self._run(deliveries.redeliver, self.workspace, check.name(delivery_id, "delivery_id"))

    async def redeliver_dead(self, sink: str) -> int:
        """Send again all that was given up for a sink; how many these are."""
        name, total, before = check.name(sink, "sink"), 0, None
        while True:
            count, before = await self._run(deliveries.redeliver_dead, self.workspace, name, before)
            total += count
            if before is None:
                return total
