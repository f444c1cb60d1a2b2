"""Runs the tasks of Django's `tasks` framework on a queue. Add this package to INSTALLED_APPS.

TASKS = {
    "default": {
        "BACKEND": "shiftwork.integrations.django.ShiftworkBackend",
        "OPTIONS": {"store": "postgresql://app@127.0.0.1/shop?schema=work_queue"},
    }
}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shiftwork.integrations.django.backend import ShiftworkBackend

__all__ = ["ShiftworkBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend on first access: Django imports applications before the framework can be imported."""
    if name != "ShiftworkBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shiftwork.integrations.django.backend import ShiftworkBackend  # noqa: PLC0415  # see above

    return ShiftworkBackend
