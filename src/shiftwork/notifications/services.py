"""Sinks at any service that apprise knows: it is loaded when something is first sent there, and dials by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from shiftwork.notifications.model import OutgoingDelivery
from shiftwork.notifications.policy import DeliveryOutcome, paragraphs, title

TIMEOUT_SEC = 20.0
MISSING = "apprise is not installed where it is sent from: pip install 'shiftwork[apprise]'"
UNGUARDED = "apprise dials by itself: that needs allow_private, and SHIFTWORK_PRIVATE_SINKS=1 where it is sent from"


class ServiceSender:
    """Sends through apprise, in a thread: it blocks."""

    async def send(self, delivery: OutgoingDelivery, _now: float) -> DeliveryOutcome:
        """One attempt. What apprise says of a failure is not repeated, since it may hold the address."""
        if not delivery.place.allow_private:
            return DeliveryOutcome(UNGUARDED)
        service = target(delivery.place.address)
        if service is None:
            return DeliveryOutcome(MISSING if not is_installed() else "apprise does not know this address")
        texts = {"title": title(delivery.notification), "body": paragraphs(delivery.notification)}
        try:
            async with asyncio.timeout(TIMEOUT_SEC):
                arrived = await asyncio.to_thread(service.notify, **texts)
        except TimeoutError:
            return DeliveryOutcome(f"it did not answer within {TIMEOUT_SEC:g} s")
        return DeliveryOutcome() if arrived else DeliveryOutcome("the service did not accept it")


def is_installed() -> bool:
    try:
        import apprise  # noqa: F401, PLC0415  # an extra
    except ImportError:
        return False
    return True


def target(address: str) -> Any:
    """The service at this address; None where apprise is not there or does not know it."""
    if not is_installed():
        return None
    import apprise  # noqa: PLC0415  # an extra

    service = apprise.Apprise()
    return service if service.add(address) else None
