"""Applies what scripts wrote through the queue's verbs: new tasks, claims, results, failures."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.compat.bridges.loki import entries
from shiftwork.compat.bridges.loki.entries import ScriptAction
from shiftwork.compat.external.folder_claims import attach
from shiftwork.compat.external.loki_folder import QUEUES, SCRIPT_AGENT, Entry, ScriptClaim, claimer
from shiftwork.engine import read
from shiftwork.model import check, ids
from shiftwork.model.errors import ConflictError, InputError, NotFound, QueueFull, ShiftworkError, WrongState
from shiftwork.model.states import CLAIMED_STATES
from shiftwork.model.task import Task
from shiftwork.queue import Queue
from shiftwork.store import crash_points
from shiftwork.store.store import Tx

log = logging.getLogger("shiftwork.compat.bridges.loki")
MAX_NEW = 200
"""The most new tasks per pass: scripts wait for the lock for ten seconds at most."""

ORDER = ("completed", "in-progress", "dead-letter", "cancelled", "pending")
"""The order of files in which dependencies come before their dependents."""


class FileEntry(NamedTuple):
    """One task in one file."""

    queue: str
    entry: Entry


class Refused(NamedTuple):
    """An entry that the queue refused, and why."""

    place: FileEntry
    why: str


class ReadResult(NamedTuple):
    """The result of one reading of the files."""

    done: Counter[str]
    strays: list[FileEntry]
    """Unknown tasks that were not submitted; they stay in their files."""
    refused: list[Refused]
    """Entries that will be overwritten with the queue's state."""
    left: list[FileEntry]
    """New tasks left for the next pass; strays until then."""
    waiting: list[FileEntry]
    """New tasks that a full queue refused; strays until it has room."""


def places(files: Mapping[str, Sequence[Entry]]) -> list[FileEntry]:
    """Every task once. A task in two files was being moved, so the file it was moved to counts."""
    found: dict[str, FileEntry] = {}
    nameless = []
    for queue in QUEUES:
        for entry in files.get(queue, ()):
            if "id" in entry:
                found[_name(entry)] = FileEntry(queue, entry)
            else:
                nameless.append(FileEntry(queue, entry))
    return sorted([*found.values(), *nameless], key=lambda place: ORDER.index(place.queue))


def _name(entry: Entry) -> str:
    return ids.parse(entry["id"]) or str(entry["id"])


def _is_name(text: str) -> bool:
    """Whether this is a valid id: scripts can write anything."""
    try:
        check.name(text, "id")
    except InputError:
        return False
    return True


class Reader:
    """Applies the files to one workspace."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._agents = queue.as_caller("system")  # changes under a claim are made as its agent
        self._unusable: list[FileEntry] = []
        self._reported_full = False

    async def take_in(self, found: Sequence[FileEntry], *, new: bool, actions: bool) -> ReadResult:
        """Submit tasks that only the files know if `new`, and apply scripts' changes to the others if `actions`."""
        taken = ReadResult(Counter(), [], [], [], [])
        known = await self._known([place.entry["id"] for place in found if "id" in place.entry])
        for place in found:
            task = known.get(_name(place.entry)) if "id" in place.entry else None
            if task is not None:
                if actions:
                    await self._take_known(place, task, taken)
            elif not entries.is_ours(place.entry):
                await self._take_new(place, taken, new=new)
        self._reported_full = bool(taken.waiting)
        return taken

    async def _take_new(self, place: FileEntry, taken: ReadResult, *, new: bool) -> None:
        """A task that only the files know."""
        if not new or place in self._unusable:
            taken.strays.append(place)
        elif taken.waiting:
            taken.waiting.append(place)  # it may depend on the one that was refused
        elif taken.done["submitted"] + taken.done["duplicates"] >= MAX_NEW:
            taken.left.append(place)
        else:
            await self._submit(place, taken)

    async def _known(self, names: Sequence[str]) -> dict[str, Task]:
        """The known tasks, by their names in the files."""
        own = [(name,) for name in sorted({name for name in names if ids.parse(name) is None and _is_name(name)})]
        queue = self._queue

        async def load(tx: Tx) -> list[Task]:
            rows = await tx.all("find_names", items=own, workspace=queue.workspace) if own else ()
            uuids = {uuid for name in names if (uuid := ids.parse(name))} | {r["task_id"] for r in rows if r["known"]}
            return await read.tasks(tx, queue.engine, queue.workspace, sorted(uuids))

        tasks = await queue.engine.store.read(load) if names else []
        return {name: task for task in tasks for name in {ids.parse(task.id) or task.id, entries.name_of(task)}}

    async def _submit(self, place: FileEntry, taken: ReadResult) -> None:
        try:
            answer = await self._queue.submit(entries.new_task(place.queue, place.entry))
        except QueueFull as error:
            taken.waiting.append(place)
            if not self._reported_full:
                self._warn(place, "and the tasks after it stay in the file until the queue has room", error)
            return
        except (InputError, ConflictError) as error:
            taken.strays.append(place)
            self._unusable.append(place)
            self._warn(place, "stays in the file, not submitted", error)
            return
        if answer.duplicate:
            log.info("%s in %s.json is a duplicate of %s", place.entry.get("id"), place.queue, answer.id)
            taken.done["duplicates"] += 1
            return
        taken.done["submitted"] += 1
        task = await self._queue.get(answer.id)
        await self._carry_out(entries.first_action(place.queue, place.entry, task), place, task, taken)

    async def _take_known(self, place: FileEntry, task: Task, taken: ReadResult) -> None:
        if loser := entries.has_lost(place.queue, place.entry, task):
            error = WrongState(f"{loser} claimed it too late: it is {task.status}", task_id=task.id)
            self._refuse(place, taken, error)
            return
        await self._carry_out(entries.script_action(place.queue, place.entry, task), place, task, taken)

    async def _carry_out(self, action: ScriptAction | None, place: FileEntry, task: Task, taken: ReadResult) -> None:
        if action is None:
            return
        try:
            await self._do(action, place.entry, task)
        except (InputError, ConflictError, NotFound) as error:
            self._refuse(place, taken, error)
        else:
            taken.done[action] += 1

    async def _do(self, action: ScriptAction, entry: Entry, task: Task) -> None:
        if action is ScriptAction.CANCEL:
            await self._queue.cancel(task.id, str(entry.get("cancelReason") or "cancelled"))
            return
        if action is ScriptAction.RETRY:
            await self._queue.dead_letters.review(task.id, "retry", note="moved back to pending.json")
            return
        token = await self._token(entry, task)
        if action is ScriptAction.COMPLETE:
            await self._agents.complete(token, **entries.result_of(entry))
        elif action in {ScriptAction.FAIL, ScriptAction.BURY}:
            await self._agents.fail(token, error=entries.error_of(entry), retry=action is ScriptAction.FAIL)

    async def _token(self, entry: Entry, task: Task) -> str:
        """The token of a script's claim; attaches the claim if the queue does not know it yet."""
        if task.status in CLAIMED_STATES:
            return ids.token(task.id, task.fence)
        agent = claimer(entry) or SCRIPT_AGENT
        claims = [ScriptClaim(task.id, agent, task.fence)]
        engine, caller = self._queue.engine, self._agents.caller
        held = await crash_points.named(
            "loki bridge", engine.store.run(lambda tx: attach(tx, engine, caller, self._queue.workspace, agent, claims))
        )
        if task.id not in held:
            raise WrongState(f"task {task.id} is not ready but {task.status}", task_id=task.id, status=task.status)
        return ids.token(task.id, held[task.id])

    def _refuse(self, place: FileEntry, taken: ReadResult, error: ShiftworkError) -> None:
        taken.refused.append(Refused(place, str(error)))
        self._warn(place, "was refused", error)

    def _warn(self, place: FileEntry, what: str, error: ShiftworkError) -> None:
        log.warning("%s in %s.json %s: %s", place.entry.get("id", "a task"), place.queue, what, error)


def as_lines(refused: Sequence[Refused], now: float) -> list[dict[str, Any]]:
    """Lines for the log of refused entries, so that nothing a script wrote is lost."""
    return [{"at": now, "file": f"{r.place.queue}.json", "why": r.why, "task": r.place.entry} for r in refused]
