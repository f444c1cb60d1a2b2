"""Sends due notifications outside of any transaction: leases them, sends with a time limit, records the outcome.

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
    from shiftwork.notifications.apprise_sinks import ServiceSender
    from shiftwork.notifications.mail import MailSender
    from shiftwork.notifications.webhooks import WebhookSender

log = logging.getLogger("shiftwork.notifications")
TICK_SEC = 1.0
_SENDER = {"email": 1, "apprise": 2}
"""The sender of each kind of sink; other kinds are webhooks."""

AT_ONCE = 32
"""Concurrent deliveries in one process."""

GRACE_SEC = 2.0
"""How long to wait for running deliveries when the process ends."""


class NotificationSender:
    """Sends for all sinks of all workspaces; several may run on one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        self._senders: tuple[WebhookSender, MailSender, ServiceSender] | None = None
        self._unable = False
        self._running: dict[asyncio.Task[None], str] = {}
        """The running deliveries, each with its sink."""

    async def run_forever(self) -> None:
        """Run until cancelled. Another process sends interrupted deliveries again."""
        try:
            while True:
                try:
                    found = await self._start_due()
                except ShiftworkError as error:
                    log.warning("notifications postponed: %s", error)
                    found = 0
                await self._pause(found)
        finally:
            await self._close()

    async def send_due(self) -> int:
        """Send until nothing is due; returns the number of attempts."""
        total = 0
        try:
            while (found := await self._start_due()) or self._running:
                total += found
                await self._pause(found=1)
        finally:
            await self._close()
        return total

    async def _start_due(self) -> int:
        room = AT_ONCE - len(self._running)
        if self._unable or room <= 0 or not await self._store.read(deliveries.is_due) or not self._load_senders():
            return 0
        busy = Counter(self._running.values())
        taken = await crash_points.named(
            "notifications", self._store.run(lambda tx: deliveries.lease(tx, self._engine, busy, room))
        )
        for delivery in taken:
            task = asyncio.create_task(crash_points.named("notifications", self._deliver(delivery)))
            self._running[task] = delivery.sink_id
            task.add_done_callback(self._running.pop)
        return len(taken)

    def _load_senders(self) -> bool:
        """Load the senders when the first delivery is due."""
        if self._senders is None:
            try:
                from shiftwork.notifications.apprise_sinks import ServiceSender  # noqa: PLC0415  # likewise
                from shiftwork.notifications.mail import MailSender  # noqa: PLC0415  # keeps the start of workers fast
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
        """Wait until a delivery ends; if none is running, for a tick."""
        if self._running:
            limit = None if found and len(self._running) >= AT_ONCE else TICK_SEC
            await asyncio.wait(set(self._running), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
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
            # Without the traceback, which may contain the address.
            log.warning("notification %s could not be sent: %s", delivery.id, type(error).__name__)
            return DeliveryOutcome(f"it could not be sent ({type(error).__name__})")

    def _opened(self, place: SinkTarget) -> SinkTarget:
        """The target with its secret decrypted; private addresses only if this process allows them."""
        allowed = place.allow_private and self._engine.private_sinks
        return place._replace(secret=self._engine.secrets.open(place.secret), allow_private=allowed)

    async def _close(self) -> None:
        if self._running:
            await asyncio.wait(set(self._running), timeout=GRACE_SEC)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._senders is not None:
            web, post, _ = self._senders
            await web.close()
            post.close()
