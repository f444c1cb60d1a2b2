"""The five documents' names over one model: `get("aegis").task_out(task)`."""

from __future__ import annotations

from shiftwork.compat.views import aegis, coscientist, factory, loki, redis
from shiftwork.compat.views.view import View
from shiftwork.model.errors import InputError

VIEWS: dict[str, View] = {
    view.name: view for view in (loki.VIEW, factory.VIEW, redis.VIEW, aegis.VIEW, coscientist.VIEW)
}

NATIVE = "native"
"""Our own names."""

__all__ = ["NATIVE", "VIEWS", "View", "chosen", "get", "name_of", "of_profile"]


def of_profile(profile: str) -> str:
    """The view in which a queue of this profile speaks."""
    return profile if profile in VIEWS else NATIVE


def name_of(view: View | None) -> str:
    return NATIVE if view is None else view.name


def chosen(name: str) -> View | None:
    """The view that a caller names; None for our own names."""
    return None if name == NATIVE else get(name)


def get(name: str) -> View:
    """The view of this document."""
    view = VIEWS.get(name)
    if view is None:
        known = ", ".join([NATIVE, *VIEWS])
        raise InputError(f"There is no view {name!r}", where="view", hint=f"Choose one of {known}.")
    return view
