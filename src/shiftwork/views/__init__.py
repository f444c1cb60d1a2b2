"""The five documents' names over one model: `get("aegis").task_out(task)`."""

from __future__ import annotations

from shiftwork.core.errors import InputError
from shiftwork.views import aegis, coscientist, factory, loki, redis
from shiftwork.views.view import View

VIEWS: dict[str, View] = {
    view.name: view for view in (loki.VIEW, factory.VIEW, redis.VIEW, aegis.VIEW, coscientist.VIEW)
}

__all__ = ["VIEWS", "View", "get"]


def get(name: str) -> View:
    """The view of this name."""
    view = VIEWS.get(name)
    if view is None:
        raise InputError(f"There is no view {name!r}", where="view", mend=f"Choose one of {', '.join(VIEWS)}.")
    return view
