"""Takes in what scripts have written, through the queue's verbs: new tasks, claims, results, failures."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.compat.bridges.loki import entries
from shiftwork.compat.bridges.loki.entries import ScriptAction
from shiftwork.compat.external.adoption import attach
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
"""New tasks taken in while the lock is held once: scripts wait for it ten seconds and no longer."""

ORDER = ("completed", "in-progress", "dead-letter", "cancelled", "pending")
"""New tasks come after those they depend on."""


class FileEntry(NamedTuple):
    """One task in one file."""

    queue: str
    entry: Entry


class Refused(NamedTuple):
    """What a script wrote and the queue did not take over."""

    place: FileEntry
    why: str


class ReadResult(NamedTuple):
    """What one reading of the files came to."""

    done: Counter[str]
    strays: list[FileEntry]
    """Tasks that the queue does not know and did not take: they stay where they are."""
    refused: list[Refused]
    """What the queue's own truth is written over."""
    left: list[FileEntry]
    """New tasks for the next time; strays until then."""
    waiting: list[FileEntry]
    """New tasks that the queue has no room for now; strays until it has."""


def places(files: Mapping[str, Sequence[Entry]]) -> list[FileEntry]:
    """Every task once. One that is in two files was being moved: where it was moved to counts."""
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
    """Whether a task may be called so: scripts write anything."""
    try:
        check.name(text, "id")
    except InputError:
        return False
    return True


class Reader:
    """Reads for one workspace."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._agents = queue.as_caller("system")  # what is done under a claim is done by its agent
        self._hopeless: list[FileEntry] = []
        self._reported_full = False

    async def take_in(self, found: Sequence[FileEntry], *, new: bool, actions: bool) -> ReadResult:
        """Submit tasks that only the files know, and do what scripts have done to the others, where asked to."""
        taken = ReadResult(Counter(), [], [], [], [])
        known = await self._known([place.entry["id"] for place in found if "id" in place.entry])
        for place in found:
            task = known.get(_name(place.entry)) if "id" in place.entry else None
            if task is not None:
                if actions:
                    await self._learn(place, task, taken)
            elif not entries.is_ours(place.entry):
                await self._meet(place, taken, new=new)
        self._reported_full = bool(taken.waiting)
        return taken

    async def _meet(self, place: FileEntry, taken: ReadResult, *, new: bool) -> None:
        """A task that only the files know."""
        if not new or place in self._hopeless:
            taken.strays.append(place)
        elif taken.waiting:
            taken.waiting.append(place)  # behind the one that was refused, on which it may depend
        elif taken.done["submitted"] + taken.done["duplicates"] >= MAX_NEW:
            taken.left.append(place)
        else:
            await self._submit(place, taken)

    async def _known(self, names: Sequence[str]) -> dict[str, Task]:
        """By the name in the file."""
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
                self._emit(place, "and what follows waits in the file for room", error)
            return
        except (InputError, ConflictError) as error:
            taken.strays.append(place)
            self._hopeless.append(place)
            self._emit(place, "stays in the file, not submitted", error)
            return
        if answer.duplicate:
            log.info("%s in %s.json is a duplicate of %s", place.entry.get("id"), place.queue, answer.id)
            taken.done["duplicates"] += 1
            return
        taken.done["submitted"] += 1
        task = await self._queue.get(answer.id)
        await self._carry_out(entries.first_action(place.queue, place.entry, task), place, task, taken)

    async def _learn(self, place: FileEntry, task: Task, taken: ReadResult) -> None:
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
        token = await self._hold(entry, task)
        if action is ScriptAction.COMPLETE:
            await self._agents.complete(token, **entries.result_of(entry))
        elif action in {ScriptAction.FAIL, ScriptAction.BURY}:
            await self._agents.fail(token, error=entries.error_of(entry), retry=action is ScriptAction.FAIL)

    async def _hold(self, entry: Entry, task: Task) -> str:
        """The token of the claim that a script has made, which the queue may not know yet."""
        if task.status in CLAIMED_STATES:
            return ids.token(task.id, task.fence)
        agent = claimer(entry) or SCRIPT_AGENT
        claims = [ScriptClaim(task.id, agent, task.fence)]
        engine, caller = self._queue.engine, self._agents.caller
        held = await crash_points.named(
            "loki bridge", engine.store.run(lambda tx: attach(tx, engine, caller, self._queue.workspace, agent, claims))
        )
        if task.id not in held:
            raise WrongState(f"task {task.id} is not free, it is {task.status}", task_id=task.id, status=task.status)
        return ids.token(task.id, held[task.id])

    def _refuse(self, place: FileEntry, taken: ReadResult, error: ShiftworkError) -> None:
        taken.refused.append(Refused(place, str(error)))
        self._emit(place, "was not taken over", error)

    def _emit(self, place: FileEntry, what: str, error: ShiftworkError) -> None:
        log.warning("%s in %s.json %s: %s", place.entry.get("id", "a task"), place.queue, what, error)


def as_lines(refused: Sequence[Refused], now: float) -> list[dict[str, Any]]:
    """For the folder's own record: nothing that a script has written is lost."""
    return [{"at": now, "file": f"{r.place.queue}.json", "why": r.why, "task": r.place.entry} for r in refused]
