"""Whether what happened is what a trigger waits for."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from shiftwork.core import events, globs
from shiftwork.core.errors import InputError
from shiftwork.core.templates import MISSING, look_up
from shiftwork.core.trigger import DagEnds, Files, Happens, Where

LONGEST_CHAIN = 5
"""How often work that a trigger created may fire a trigger in turn, so that no circle of them runs for ever."""
_SCALARS = (str, int, float, bool, type(None))


def check_where(where: Where) -> None:
    for place, wanted in where.items():
        plain = isinstance(wanted, _SCALARS)
        several = isinstance(wanted, list) and bool(wanted) and all(isinstance(each, _SCALARS) for each in wanted)
        contains = isinstance(wanted, dict) and wanted.keys() == {"contains"} and isinstance(wanted["contains"], str)
        if not (plain or several or contains):
            raise InputError('expected a value, a list of them, or {"contains": text}', where=f"on.where.{place}")


def check_events(names: list[str]) -> None:
    """Events that exist, and none of triggers: those would fire each other with no work between them."""
    able = {name for name in events.every_name() if not name.startswith("trigger.")}
    for name in names:
        if not events.chosen(name, able):
            mend = "docs/reference/events.md lists them; events of triggers fire none."
            raise InputError(f"no trigger can wait for the event {name!r}", where="on.events", mend=mend)


def unmet(where: Where, facts: Mapping[str, Any]) -> str | None:
    """The first place that is not as it should be, or None."""
    return next((place for place, wanted in where.items() if not _fits(look_up(facts, place), wanted)), None)


def _fits(found: Any, wanted: Any) -> bool:
    if found is MISSING:
        return False
    if isinstance(wanted, dict):
        return isinstance(found, str) and wanted["contains"] in found
    return any(_equal(found, each) for each in (wanted if isinstance(wanted, list) else [wanted]))


def _equal(found: Any, wanted: Any) -> bool:
    """JSON's true is not 1."""
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def check_pattern(pattern: str) -> None:
    if pattern.startswith("/") or "\\" in pattern or ".." in pattern.split("/"):
        mend = "Write it as in `inbox/*.md` or `**/*.md`; the server says which folder it watches."
        raise InputError("a path in the folder that is watched", where="on.pattern", mend=mend)


def is_file(on: Files, path: str) -> bool:
    return globs.compiled(on.pattern).matches(path)


def is_event(on: Happens, facts: Mapping[str, Any]) -> bool:
    heard = [name for name in facts["names"] if not name.startswith("trigger.")]
    return any(events.chosen(name, heard) for name in on.events) and unmet(on.where, facts) is None


def is_end(on: DagEnds, title: str | None, status: str) -> bool:
    return status in on.ends and fnmatchcase(title or "", on.title)
