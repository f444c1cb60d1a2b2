"""Reruns from a step: the new task keeps earlier steps, so that no paid work is repeated."""

from __future__ import annotations

from collections.abc import Sequence

from shiftwork.model import ids
from shiftwork.model.errors import InputError, WrongState
from shiftwork.steps.effects import own_key
from shiftwork.store.store import Row, Tx

MAX_LISTED = 20


async def find(tx: Tx, task_ids: Sequence[str], name: str) -> Row:
    """The finished step of this name, of the first of these rows of one lineage that has it."""
    for task_id in dict.fromkeys(task_ids):
        step = await tx.one("read_step", task=task_id, name=name)
        if step is not None and step["done_at"] is not None:
            return step
        if step is not None:
            shown = ids.show_task(task_id)
            hint = "Name a finished step; what comes before it is kept."
            raise WrongState(f"step {name!r} of task {shown} has not finished", where="from_step", hint=hint)
    done = [row["name"] for row in await tx.all("finished_steps", task=task_ids[0], count=MAX_LISTED)]
    hint = f"Its finished steps: {', '.join(map(repr, done))}." if done else "It has no finished steps."
    raise InputError(f"task {ids.show_task(task_ids[0])} has no step {name!r}", where="from_step", hint=hint)


async def keep_before(tx: Tx, step: Row, newest_id: str, root_id: str, new_id: str) -> int:
    """Copy the steps before this one to a new task, with the artifacts and effects that were recorded by then."""
    place = {"old": step["task_id"], "new": new_id, "place": step["place"]}
    kept = await tx.all("copy_steps_before", **place)
    await tx.run("copy_artifacts_before", **place, before=step["began_at"])
    old = await own_key(tx, newest_id, "")
    prefix = await own_key(tx, new_id, "")
    await tx.run(
        "copy_effects_before",
        root=root_id,
        new=new_id,
        before=step["began_at"],
        old_prefix=old,
        length=len(old),
        prefix=prefix,
    )
    return len(kept)
