"""Views: a document's names for the fields, states and events of requests and answers.

The package that defines a view registers it; the server looks it up by its name.
"""

from __future__ import annotations

from shiftwork.model.errors import InputError
from shiftwork.views.view import View

NATIVE = "native"
"""Our own names."""

_views: dict[str, View] = {}


def register(view: View) -> View:
    _views[view.name] = view
    return view


def names() -> tuple[str, ...]:
    """The names that a caller may pass, ours first."""
    return (NATIVE, *_views)


def of_profile(profile: str) -> str:
    """The default view of a queue with this profile."""
    return profile if profile in _views else NATIVE


def name_of(view: View | None) -> str:
    return NATIVE if view is None else view.name


def chosen(name: str) -> View | None:
    """The view that a caller names; None for our own names."""
    return None if name == NATIVE else get(name)


def get(name: str) -> View:
    view = _views.get(name)
    if view is None:
        raise InputError(f"There is no view {name!r}", where="view", hint=f"Choose one of {', '.join(names())}.")
    return view
