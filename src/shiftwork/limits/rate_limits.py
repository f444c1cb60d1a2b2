"""Limits in the store: what claims take of them, and what they release at their end.

The row of a limit is locked last, so that a transaction waiting for it blocks no others; a live claim's share is stored
with the limit and released with the claim, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import AttemptEnd, Participant, UnitOfWork
from shiftwork.limits import gates, window_policy
from shiftwork.limits.window_policy import Cell, Limit, LimitShare, LimitUsage
from shiftwork.model import keys
from shiftwork.model.keys import Key
from shiftwork.store.store import Row

Name = tuple[str, str]
"""A workspace and a key."""


class ClaimEnd(NamedTuple):
    """An ended claim, and the tokens that its task has used so far, over all attempts."""

    id: str
    fence: int
    tokens: int
    began: bool
    lost: bool


class LimitInUse(NamedTuple):
    """A limit with its current use."""

    limit: Limit
    used: LimitUsage


class Limits(Participant):
    """Releases the shares of claims that one unit of work ends."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._endings: list[ClaimEnd] = []

    def attempt_ended(self, end: AttemptEnd) -> None:
        self._end(end.row, lost=end.lost)

    def release_submitted(self, row: TaskRow) -> None:
        """Release the share of a claim that awaits its verdict: its agent no longer uses anything."""
        self._end(row, lost=False)

    def _end(self, row: TaskRow, *, lost: bool) -> None:
        self.asks = True
        tokens = row.tokens_in + row.tokens_out
        self._endings.append(ClaimEnd(row.id, row.fence, tokens, row.started_at is not None, lost))

    def attempts_accepted(self, rows: Sequence[Row]) -> None:
        if rows[0]["guarded"]:
            self.asks = True
            self._endings += [
                ClaimEnd(row["id"], row["fence"], row["tokens_in"] + row["tokens_out"], began=True, lost=False)
                for row in rows
            ]

    async def save(self) -> None:
        if self._endings and self.work.found["limited"]:
            await release(self.work, self._endings)


def load(row: Row) -> LimitInUse:
    cells = tuple(Cell(*cell) for cell in msgspec.json.decode(row["cells"]))
    return LimitInUse(msgspec.json.decode(row["terms"], type=Limit), LimitUsage(int(row["held"]), cells))


def as_text(cells: Sequence[Cell]) -> str:
    return msgspec.json.encode(cells).decode()


async def lock(work: UnitOfWork, names: Collection[Name]) -> dict[Name, LimitInUse]:
    rows = await work.tx.all("lock_limits", items=sorted(names)) if names else []
    return {(row["workspace"], row["key"]): load(row) for row in rows}


async def take(work: UnitOfWork, workspace: str, wanted: Sequence[tuple[Row, Sequence[Key]]]) -> set[str]:
    """Admit tasks in the order given as long as all their limits have room; returns their ids."""
    names = {(workspace, key.text) for _, of in wanted for key in of}
    taken = await lock(work, names)
    admitted, claims = set(), []
    for row, of in wanted:
        mine = [name for key in of if (name := (workspace, key.text)) in taken]
        steps = {name: window_policy.take(*taken[name], work.now) for name in mine}
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


async def release(work: UnitOfWork, endings: Sequence[ClaimEnd]) -> None:
    """Release the shares of ended claims, and open the gates of limits with room."""
    by_claim = {(ending.id, ending.fence): ending for ending in endings}
    rows = await work.tx.all("end_limit_claims", items=sorted(by_claim))
    if not rows:
        return
    taken = await lock(work, {(row["workspace"], row["key"]) for row in rows})
    for row in rows:
        name, ending = (row["workspace"], row["key"]), by_claim[row["task_id"], row["fence"]]
        if name in taken:
            spent = ending.tokens - row["used_before"]
            tokens = max(spent, row["tokens"]) if ending.lost else spent or None
            share = LimitShare(row["at"], row["tokens"])
            limit, used = taken[name]
            used = window_policy.release(limit, used, share, tokens, work.now, began=ending.began)
            taken[name] = LimitInUse(limit, used)
    await save(work, taken)


async def save(work: UnitOfWork, taken: Mapping[Name, LimitInUse]) -> None:
    """Write the current use, close the gates of full limits, and open those of others."""
    if not taken:
        return
    ordered = sorted(taken.items())
    items = [(*name, used.held, as_text(used.cells)) for name, (_, used) in ordered]
    await work.tx.run("save_limits", items=items)
    opens = {name: window_policy.opens_at(limit, used, work.now) for name, (limit, used) in ordered}
    full = [(*name, "limit", "", None, at) for name, at in opens.items() if at != work.now]
    if full:
        await work.tx.run("move_gates", items=full, now=work.now, actor=work.caller.actor)
    await open_gates(work, [name for name, at in opens.items() if at == work.now])


async def open_gates(work: UnitOfWork, names: Sequence[Name]) -> None:
    opened = await work.tx.all("open_gates", items=[(*name, "limit") for name in names]) if names else []
    for workspace in sorted({row["workspace"] for row in opened}):
        found = [keys.parse(row["scope"]) for row in opened if row["workspace"] == workspace]
        await gates.wake(work.tx, workspace, found)
