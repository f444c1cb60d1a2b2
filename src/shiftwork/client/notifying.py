"""What whoever wants to be told does: sinks, and the deliveries to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork.client.handle import Handle, given, new_key, part
from shiftwork.queue import check
from shiftwork.queue.notification.deliveries import Delivery, Status
from shiftwork.queue.notification.sinks import AddedSink, NewSink, Sink, SinkChanges
from shiftwork.wire.protection import Removed
from shiftwork.wire.sinks import DeliveryList, Redelivered, SinkList


class Notifying(Handle):
    """Verbs about notifications out of the queue."""

    async def add_sink(self, /, sink: NewSink | Mapping[str, Any] | None = None, **fields: Any) -> AddedSink:
        checked = check.read(fields if sink is None else sink, NewSink, "sink")
        return await self._once("/api/sinks", AddedSink, checked)

    async def sinks(self) -> list[Sink]:
        return (await self._get("/api/sinks", SinkList)).sinks

    async def sink(self, name: str) -> Sink:
        return await self._get(_path(name), Sink)

    async def update_sink(
        self, /, name: str, changes: SinkChanges | Mapping[str, Any] | None = None, **fields: Any
    ) -> Sink:
        checked = check.read(fields if changes is None else changes, SinkChanges, "changes")
        return await self._send("PATCH", _path(name), Sink, checked, key=new_key())

    async def pause_sink(self, name: str, reason: str | None = None) -> Sink:
        return await self._once(f"{_path(name)}/pause", Sink, given(reason=reason))

    async def resume_sink(self, name: str) -> Sink:
        return await self._once(f"{_path(name)}/resume", Sink)

    async def remove_sink(self, name: str) -> bool:
        return (await self._send("DELETE", _path(name), Removed, key=new_key())).removed

    async def test_sink(self, name: str) -> Delivery:
        return await self._once(f"{_path(name)}/test", Delivery)

    async def deliveries(
        self,
        sink: str | None = None,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Delivery]:
        query: dict[str, Any] = {"sink": sink, "status": status, "after": after, "limit": limit}
        return (await self._get("/api/deliveries", DeliveryList, **query)).deliveries

    async def delivery(self, delivery_id: str) -> Delivery:
        return await self._get(f"/api/deliveries/{part(delivery_id, 'delivery_id')}", Delivery)

    async def redeliver(self, delivery_id: str) -> Delivery:
        return await self._once(f"/api/deliveries/{part(delivery_id, 'delivery_id')}/redeliver", Delivery)

    async def redeliver_dead(self, sink: str) -> int:
        body = {"sink": check.name(sink, "sink")}
        return (await self._once("/api/deliveries/redeliver", Redelivered, body)).redelivered


def _path(name: str) -> str:
    return f"/api/sinks/{part(name, 'sink')}"
