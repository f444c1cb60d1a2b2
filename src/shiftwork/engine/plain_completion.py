"""Accepts the results of plain tasks without reading any of their rows (PostgreSQL only).

A single task is completed by one statement, which is a transaction of its own; many tasks by two statements. The first
updates the tasks under their fences and writes the attempts. The second, with the tasks locked, checks that nothing
depends on them and writes the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from shiftwork.engine.checked_reports import CheckedResult
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.outcome import Token
from shiftwork.store.store import ByColumn, Row

_TOKEN = attrgetter("token")


def may_be_plain(work: UnitOfWork, items: Sequence[CheckedResult]) -> bool:
    """Whether the results themselves allow the plain path; the tasks are checked later."""
    if work.engine.store.one_writer or len({item.request_id for item in items}) != 1:
        return False
    return all(item.is_bare for item in items)


async def accept_one(work: UnitOfWork, item: CheckedResult) -> bool:
    """End the attempt in a transaction of its own, if its task is plain."""
    caller, tx = work.caller, work.tx
    workspace, fast_path = caller.workspace or "", work.engine.plain_ends
    if not fast_path.is_likely(workspace):
        return False
    alike = work.completion_events("", "", "", item.request_id or caller.request_id)
    ended = await tx.alone(
        "complete_plain",
        id=item.token.id,
        fence=item.token.fence,
        result=item.stored,
        now=work.now,
        workspace=caller.workspace,
        holder=caller.holder,
        verb=alike.verb,
        path=alike.path,
        actor=None if caller.actor == "system" else caller.actor,
        request_id=alike.request_id,
        data=alike.data,
    )
    if ended is not None:
        fast_path.record(workspace, is_plain=bool(ended))
    if not ended:
        return False
    tx.announce_end(item.token.id, to_others=ended[0]["awaited"])
    return True


async def accept(work: UnitOfWork, items: Sequence[CheckedResult]) -> tuple[Sequence[Token], Sequence[Row]]:
    """End the attempts whose tasks are plain.

    Returns the tokens that are done, and the rows of tasks that turned out to have dependents or belong to a larger
    DAG.
    """
    tx, caller = work.tx, work.caller
    ordered = sorted(items, key=_TOKEN)
    ended = [item.token for item in ordered]
    columns = [token.id for token in ended], [token.fence for token in ended], [item.stored for item in ordered]
    groups = await tx.all(
        "complete_plain_many",
        items=ByColumn(columns),
        now=work.now,
        workspace=caller.workspace,
        holder=caller.holder,
    )
    if sum(group["size"] for group in groups) < len(ended):
        named = {id_ for group in groups for id_ in _listed(group["ids"])}
        ended = [token for token in ended if token.id in named]
    if not ended:
        return [], ()
    request_id = ordered[0].request_id or caller.request_id
    if len(groups) == 1:
        are_alone = await _emit(work, groups[0], request_id)
    else:
        are_alone = await _emit_all(work, groups, ended, request_id)
    if are_alone:
        tx.announce_end(*(token.id for token in ended), to_others=groups[0]["awaited"])
        return ended, ()
    return [], await tx.all("completed_rows", items=[(token.id,) for token in ended], now=work.now)


async def _emit(work: UnitOfWork, group: Row, request_id: str | None) -> bool:
    """Write the event of tasks of one agent and type; False if one of them has dependents or a larger DAG."""
    alike = work.completion_events(group["workspace"], group["agent_id"], group["type"], request_id)
    ended = ByColumn((group["ids"], group["fences"], group["seconds"]))
    ties = await work.tx.one("log_completed", items=ended, at=work.now, **alike._asdict())
    return ties is not None and not (ties["awaited"] or ties["joined"])


async def _emit_all(work: UnitOfWork, groups: Sequence[Row], ended: Sequence[Token], request_id: str | None) -> bool:
    """The same for several agents or types, whose events are sent together."""
    ties = await work.tx.one("ties_of", items=[(token.id, token.id) for token in ended])
    if ties is None or ties["awaited"] or ties["joined"]:
        return False
    for group in groups:
        alike = work.completion_events(group["workspace"], group["agent_id"], group["type"], request_id)
        fences = map(int, _listed(group["fences"]))
        work.add_batch(alike, zip(_listed(group["ids"]), fences, group["seconds"], strict=True))
    return True


def _listed(array: str) -> list[str]:
    """The values of a PostgreSQL array literal without quoted elements."""
    return array[1:-1].split(",")
