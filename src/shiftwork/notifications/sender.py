"""Sends what is due, outside of any transaction: taken under a lease, sent with a time limit, then recorded.

If a process dies between sending and recording, the lease expires and the notification is sent again with the same id.
A slow or dead sink delays only itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from shiftwork.engine.engine import Engine
from shiftwork.model.errors import ShiftworkError, StoreUnsuitable
from shiftwork.notifications import deliveries
from shiftwork.notifications.model import OutgoingDelivery, SinkTarget
from shiftwork.notifications.policy import DeliveryOutcome
from shiftwork.store import crash_points

if TYPE_CHECKING:
    from shiftwork.notifications.mail import MailSender
    from shiftwork.notifications.services import ServiceSender
    from shiftwork.notifications.webhooks import WebhookSender

log = logging.getLogger("shiftwork.notifications")
TICK_SEC = 1.0
_SENDER = {"email": 1, "apprise": 2}
"""Which sender a kind of sink has; the others are behind a URL."""

AT_ONCE = 32
"""Concurrent deliveries in one process."""

GRACE_SEC = 2.0
"""How long running deliveries may take when the process ends."""


class NotificationSender:
    """Sends for all sinks of all workspaces; several may run on one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        self._senders: tuple[WebhookSender, MailSender, ServiceSender] | None = None
        self._unable = False
        self._under_way: dict[asyncio.Task[None], str] = {}
        """Each with the sink it goes to."""

    async def run_forever(self) -> None:
        """Run until cancelled. Another process sends interrupted deliveries again."""
        try:
            while True:
                try:
                    found = await self._set_out()
                except ShiftworkError as error:
                    log.warning("notifications wait: %s", error)
                    found = 0
                await self._pause(found)
        finally:
            await self._close()

    async def send_due(self) -> int:
        """Send until nothing is due; returns the number of attempts."""
        total = 0
        try:
            while (found := await self._set_out()) or self._under_way:
                total += found
                await self._pause(found=1)
        finally:
            await self._close()
        return total

    async def _set_out(self) -> int:
        room = AT_ONCE - len(self._under_way)
        if self._unable or room <= 0 or not await self._store.read(deliveries.is_due) or not self._equip():
            return 0
        busy = Counter(self._under_way.values())
        taken = await crash_points.named(
            "notifications", self._store.run(lambda tx: deliveries.lease(tx, self._engine, busy, room))
        )
        for delivery in taken:
            task = asyncio.create_task(crash_points.named("notifications", self._deliver(delivery)))
            self._under_way[task] = delivery.sink_id
            task.add_done_callback(self._under_way.pop)
        return len(taken)

    def _equip(self) -> bool:
        """What is needed to send is loaded when something is first to be sent."""
        if self._senders is None:
            try:
                from shiftwork.notifications.mail import MailSender  # noqa: PLC0415  # no worker waits for it at its start
                from shiftwork.notifications.services import ServiceSender  # noqa: PLC0415  # likewise
                from shiftwork.notifications.webhooks import WebhookSender  # noqa: PLC0415  # likewise
            except ImportError as error:
                log.warning(
                    "leaving notifications to other processes: %s is not installed (shiftwork[client])", error.name
                )
                self._unable = True
                return False
            self._senders = WebhookSender(), MailSender(), ServiceSender()
        return True

    async def _pause(self, found: int) -> None:
        """Wait until a delivery ends; without running ones, for a tick."""
        if self._under_way:
            limit = None if found and len(self._under_way) >= AT_ONCE else TICK_SEC
            await asyncio.wait(set(self._under_way), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        elif not found:
            await asyncio.sleep(TICK_SEC)

    async def _deliver(self, pending: OutgoingDelivery) -> None:
        crash_points.reach("before sending")
        outcome = await self._send(pending)
        crash_points.reach("after sending")
        try:
            status = await crash_points.named(
                "notifications", self._store.run(lambda tx: deliveries.record(tx, self._engine, pending, outcome))
            )
        except ShiftworkError as error:
            log.warning("sending notification %s again, since its outcome could not be recorded: %s", pending.id, error)
            return
        if status == "dead":
            log.warning("giving up notification %s after %d attempts: %s", pending.id, pending.attempts, outcome.error)

    async def _send(self, delivery: OutgoingDelivery) -> DeliveryOutcome:
        assert self._senders is not None
        sender = self._senders[_SENDER.get(delivery.place.kind, 0)]
        try:
            return await sender.send(delivery._replace(place=self._opened(delivery.place)), self._store.now())
        except StoreUnsuitable as error:
            log.warning("notification %s could not be sent: %s", delivery.id, error)
            return DeliveryOutcome(error.what)
        except Exception as error:  # noqa: BLE001  # a notification that fails must not stop the sender
            # Without its trace, which may show the address.
            log.warning("notification %s could not be sent: %s", delivery.id, type(error).__name__)
            return DeliveryOutcome(f"it could not be sent ({type(error).__name__})")

    def _opened(self, place: SinkTarget) -> SinkTarget:
        """With its secret readable, and private only where this process was started to allow that."""
        allowed = place.allow_private and self._engine.private_sinks
        return place._replace(secret=self._engine.secrets.open(place.secret), allow_private=allowed)

    async def _close(self) -> None:
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=GRACE_SEC)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._senders is not None:
            web, post, _ = self._senders
            await web.close()
            post.close()
