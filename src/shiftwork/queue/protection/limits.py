"""Limits in the store: what claims take of them, and what they give back at their end.

The row of a limit is locked last, so that whoever waits for it keeps nobody waiting; what a live claim has taken
stands beside it and goes with the claim, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shiftwork.core import keys
from shiftwork.policy import window
from shiftwork.policy.window import Cell, Limit, Share, Used
from shiftwork.queue.protection import gates

if TYPE_CHECKING:
    from shiftwork.core.keys import Key
    from shiftwork.queue.work import Work
    from shiftwork.store.store import Row

Name = tuple[str, str]
"""A workspace and a key."""


class Ending(NamedTuple):
    """A claim that has ended, and what its task has used in tokens up to now, over all its attempts."""

    id: str
    fence: int
    tokens: int
    began: bool
    lost: bool


class Taken(NamedTuple):
    """A limit with what is used of it."""

    limit: Limit
    used: Used


def load(row: Row) -> Taken:
    cells = tuple(Cell(*cell) for cell in msgspec.json.decode(row["cells"]))
    return Taken(msgspec.json.decode(row["terms"], type=Limit), Used(int(row["held"]), cells))


def as_text(cells: Sequence[Cell]) -> str:
    return msgspec.json.encode(cells).decode()


async def lock(work: Work, names: Collection[Name]) -> dict[Name, Taken]:
    rows = await work.tx.all("lock_limits", items=sorted(names)) if names else []
    return {(row["workspace"], row["key"]): load(row) for row in rows}


async def take(work: Work, workspace: str, wanted: Sequence[tuple[Row, Sequence[Key]]]) -> set[str]:
    """Let tasks go as long as all their limits have room, in the order given; the ids of these."""
    names = {(workspace, key.text) for _, of in wanted for key in of}
    taken = await lock(work, names)
    admitted, claims = set(), []
    for row, of in wanted:
        mine = [name for key in of if (name := (workspace, key.text)) in taken]
        steps = {name: window.take(*taken[name], work.now) for name in mine}
        if None in steps.values():
            continue
        admitted.add(row["id"])
        for name, step in steps.items():
            assert step is not None
            taken[name] = taken[name]._replace(used=step[0])
            claims.append((row["id"], row["fence"] + 1, *name, *step[1], row["tokens_in"] + row["tokens_out"]))
    await work.tx.insert("insert_limit_claims", claims)
    await save(work, taken)
    return admitted


async def give_back(work: Work, endings: Sequence[Ending]) -> None:
    """Claims have ended: their shares go back, and what has room again is opened."""
    by_claim = {(ending.id, ending.fence): ending for ending in endings}
    rows = await work.tx.all("end_limit_claims", items=sorted(by_claim))
    if not rows:
        return
    taken = await lock(work, {(row["workspace"], row["key"]) for row in rows})
    for row in rows:
        name, ending = (row["workspace"], row["key"]), by_claim[row["task_id"], row["fence"]]
        if name in taken:
            spent = ending.tokens - row["used_before"]
            told = max(spent, row["tokens"]) if ending.lost else spent or None
            share = Share(row["at"], row["tokens"])
            limit, used = taken[name]
            used = window.give_back(limit, used, share, told, work.now, began=ending.began)
            taken[name] = Taken(limit, used)
    await save(work, taken)


async def save(work: Work, taken: Mapping[Name, Taken]) -> None:
    """Write what is used, close the gates of what is full, and open those of what is not."""
    if not taken:
        return
    ordered = sorted(taken.items())
    items = [(*name, used.held, as_text(used.cells)) for name, (_, used) in ordered]
    await work.tx.run("save_limits", items=items)
    opens = {name: window.opens_at(limit, used, work.now) for name, (limit, used) in ordered}
    full = [(*name, "limit", "", None, at) for name, at in opens.items() if at != work.now]
    if full:
        await work.tx.run("move_gates", items=full, now=work.now, actor=work.caller.actor)
    await open_gates(work, [name for name, at in opens.items() if at == work.now])


async def open_gates(work: Work, names: Sequence[Name]) -> None:
    opened = await work.tx.all("open_gates", items=[(*name, "limit") for name in names]) if names else []
    for workspace in sorted({row["workspace"] for row in opened}):
        found = [keys.parse(row["scope"]) for row in opened if row["workspace"] == workspace]
        await gates.wake(work.tx, workspace, found)
