"""The Django application; it provides the command `shiftwork_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class ShiftworkConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "shiftwork.integrations.django"
    label = "shiftwork"
    verbose_name = "Shiftwork"
