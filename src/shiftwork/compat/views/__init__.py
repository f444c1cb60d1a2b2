"""The five documents' names over one model."""

from __future__ import annotations

from shiftwork.compat.views import (
    aegis,
    agents_adapters,  # noqa: F401  # registers adapters
    claims_adapters,  # noqa: F401  # registers adapters
    control_adapters,  # noqa: F401  # registers adapters
    coscientist,
    factory,
    limits_adapters,  # noqa: F401  # registers adapters
    loki,
    redis,
    tasks_adapters,  # noqa: F401  # registers adapters
    waits_adapters,  # noqa: F401  # registers adapters
)
from shiftwork.views import register
from shiftwork.views.view import View

VIEWS: dict[str, View] = {
    view.name: register(view) for view in (loki.VIEW, factory.VIEW, redis.VIEW, aegis.VIEW, coscientist.VIEW)
}
