"""The five documents' names for one model."""

from __future__ import annotations

from shiftwork.compat.views import (
    aegis,
    coscientist,
    factory,
    loki,
    operation_adapters,  # noqa: F401  # registers adapters
    redis,
)
from shiftwork.views import register
from shiftwork.views.view import View

VIEWS: dict[str, View] = {
    view.name: register(view) for view in (loki.VIEW, factory.VIEW, redis.VIEW, aegis.VIEW, coscientist.VIEW)
}
