"""Sinks at any service that apprise supports; it is loaded on first use, and opens connections itself."""

from __future__ import annotations

import asyncio
from typing import Any

from shiftwork.notifications.model import OutgoingDelivery
from shiftwork.notifications.policy import DeliveryOutcome, paragraphs, title

TIMEOUT_SEC = 20.0
MISSING = "the sending process needs apprise: pip install 'shiftwork[apprise]'"
UNGUARDED = "apprise opens connections itself: set allow_private, and SHIFTWORK_PRIVATE_SINKS=1 on the sending process"


class ServiceSender:
    """Sends through apprise in a thread, because it blocks."""

    async def send(self, delivery: OutgoingDelivery, _now: float) -> DeliveryOutcome:
        """Send once. Apprise's error text is dropped, since it may contain the address."""
        if not delivery.place.allow_private:
            return DeliveryOutcome(UNGUARDED)
        service = target(delivery.place.address)
        if service is None:
            return DeliveryOutcome(MISSING if not is_installed() else "apprise does not support this address")
        texts = {"title": title(delivery.notification), "body": paragraphs(delivery.notification)}
        try:
            async with asyncio.timeout(TIMEOUT_SEC):
                arrived = await asyncio.to_thread(service.notify, **texts)
        except TimeoutError:
            return DeliveryOutcome(f"it did not answer within {TIMEOUT_SEC:g} s")
        return DeliveryOutcome() if arrived else DeliveryOutcome("the service did not accept it")


def is_installed() -> bool:
    try:
        import apprise  # noqa: F401, PLC0415  # an optional extra
    except ImportError:
        return False
    return True


def target(address: str) -> Any:
    """The service at this address; None if apprise is not installed or does not support it."""
    if not is_installed():
        return None
    import apprise  # noqa: PLC0415  # an optional extra

    service = apprise.Apprise()
    return service if service.add(address) else None
