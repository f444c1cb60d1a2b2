"""File triggers: records the files seen by the folder watcher, and fires for changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.engine.engine import Caller, Engine
from shiftwork.store.store import Tx
from shiftwork.triggers import firing
from shiftwork.triggers.firing import ArmedTrigger, FiringCause, armed_trigger
from shiftwork.triggers.model import FileChange, Files, Firing


class Watcher(NamedTuple):
    """A trigger, and the last seen files: a hash by path, or None if removed."""

    trigger: ArmedTrigger
    looked: bool
    saved_at: float
    known: Mapping[str, str | None]


class ChangedFile(NamedTuple):
    """A file whose content has changed; without a hash, it was removed."""

    path: str
    change: FileChange
    sha256: str | None
    size: int


async def watchers(tx: Tx) -> list[Watcher]:
    found = []
    for row in await tx.all("file_triggers"):
        files = await tx.all("watched_files", trigger_id=row["id"])
        known = {file["path"]: file["sha256"] for file in files}
        found.append(Watcher(armed_trigger(row), row["looked_at"] is not None, row["updated_at"], known))
    return found


async def record_existing(tx: Tx, trigger_id: str, files: Sequence[tuple[str, str]]) -> None:
    """Record the existing files, which do not fire the trigger."""
    if await tx.one("note_first_look", id=trigger_id, now=tx.now) is not None:
        await tx.insert("insert_watched_files", [(trigger_id, path, sha256) for path, sha256 in files])


async def fire_for(tx: Tx, engine: Engine, trigger: ArmedTrigger, seen: ChangedFile) -> Firing | None:
    """Fire for a file, unless another server has already done so, or the change does not match."""
    if not await _is_news(tx, trigger, seen):
        return None
    return await firing.fire(tx, engine, _caller(trigger), trigger, _occasion(engine, tx.now, trigger, seen))


async def skip_for(tx: Tx, engine: Engine, trigger: ArmedTrigger, seen: ChangedFile, why: str) -> None:
    """Record that the work for a file cannot be submitted."""
    if await _is_news(tx, trigger, seen):
        await firing.skip(tx, engine, _caller(trigger), trigger, _occasion(engine, tx.now, trigger, seen), why)


async def _is_news(tx: Tx, trigger: ArmedTrigger, seen: ChangedFile) -> bool:
    row = await tx.one("lock_trigger_by_id", id=trigger.id)
    if row is None or row["paused_at"] is not None or row["looked_at"] is None:
        return False  # no record: the trigger was resumed or saved after the watcher read it
    saved = await tx.one("save_watched_file", trigger_id=trigger.id, path=seen.path, hash=seen.sha256)
    assert isinstance(trigger.on, Files)
    return saved is not None and seen.change in trigger.on.changes


def _caller(trigger: ArmedTrigger) -> Caller:
    return Caller(trigger.actor, workspace=trigger.workspace)


def _occasion(engine: Engine, now: float, trigger: ArmedTrigger, seen: ChangedFile) -> FiringCause:
    """The key is new each time, since the same content can return; the recorded files prevent double firing."""
    facts: dict[str, Any] = seen._asdict()
    return FiringCause(f"file:{engine.ids.make(now)}", {"trigger": trigger.name, **facts}, data=facts)
