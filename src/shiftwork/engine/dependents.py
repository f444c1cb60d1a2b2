"""Frees, fails or cancels the dependents of ended tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.engine.dependencies import Dependency
from shiftwork.engine.failed_ends import failed_ends
from shiftwork.engine.rows import TaskRow, load
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import ids
from shiftwork.model.states import FINAL, SETTLED, State
from shiftwork.model.task import FailedDependency
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row
from shiftwork.validation import policy as verdict
from shiftwork.waits import approval_guard as guard


async def free_dependents(work: UnitOfWork, roots: Collection[str]) -> None:
    """Flip the open edges of completed tasks, count the flips, and free dependents that wait for nothing else."""
    if roots:
        await _count_flips(work, await work.tx.all("satisfy_edges", items=[(root,) for root in sorted(roots)]))


async def _count_flips(work: UnitOfWork, flips: Sequence[Row]) -> None:
    if not flips:
        return
    counts = Counter(flip["dependent"] for flip in flips)
    for row in await lock_newest(work, counts):
        row.waiting -= counts[row.root_id]
        work.touch(row)
        if row.waiting == 0 and row.status == State.PENDING:
            await unblock(work, row)


async def unblock(
    work: UnitOfWork,
    row: TaskRow,
    verb: str = "unblocked",
    event_data: Mapping[str, Any] | None = None,
) -> None:
    """Make a pending task ready once nothing blocks it."""
    row.blocked_reason = row.block_check_at = None
    settings = await work.settings_of(row)
    path, data = await guard.unblock_or_guard(work, row, settings, "unblock", data=event_data)
    work.emit(row, verb, path, data=data)


async def lock_newest(work: UnitOfWork, roots: Collection[str]) -> list[TaskRow]:
    """The current rows of these lineages, as this unit of work sees them."""
    if not roots:
        return []
    items = [(root,) for root in sorted(roots)]
    await work.tx.all(
        "lock_roots", items=items
    )  # first, so that the newest row is determined after the wait for the lock
    raw = await work.tx.all("lock_lineages", items=items)
    return [work.rows.get(row["id"]) or work.attach(load(row)) for row in raw]


async def count_waiting(work: UnitOfWork, root_id: str) -> int:
    """The number of open edges and open waits of a lineage."""
    (counted,) = await work.tx.all("count_waiting", items=[(root_id,)])
    return int(counted["open"])


class OpenEdge(NamedTuple):
    """An open edge of a dependent, and whether any end of the dependency satisfies it."""

    dependency: str
    waits: bool
    any_end: bool

    def survives(self, settings: Settings) -> bool:
        """Whether the dependent continues without this dependency. A wait under a claim decides that itself."""
        return self.any_end if self.waits else settings.on_dependency_failed == "continue"


async def fail_dependents(work: UnitOfWork, roots: Collection[str], only: Collection[str] | None = None) -> None:
    """A dependency failed for good: each dependent's settings decide whether it waits, ends or continues."""
    await _lose_judges(work, set(roots))
    dependents = await _dependents(work, roots, only)
    ends = await failed_ends(work, roots) if dependents else {}
    cancelled, held, passed = set(), {}, []
    rows = await lock_newest(work, dependents)
    for row in rows:
        settings = await work.settings_of(row)
        edges = dependents[row.root_id]
        without = [e.dependency for e in edges if e.survives(settings) and e.dependency in ends]
        if without:
            _tell_failed(work, row, without, "continue")
            passed += [(row.root_id, dependency) for dependency in without]
        if others := [edge.dependency for edge in edges if edge.dependency not in without]:
            then = "wait" if settings.on_dependency_failed == "continue" else settings.on_dependency_failed
            _tell_failed(work, row, others, then)
            held[row.root_id] = others
            if then != "wait" and row.status == State.PENDING:
                cancel_row(work, row, f"Dependency {ids.show_task(others[0])} failed")
                cancelled.add(row.root_id)
    await _alert_creators(work, [row for row in rows if row.root_id in held], held)
    await _continue_without(work, passed, ends)
    await cancel_dependents(work, cancelled)


def _tell_failed(work: UnitOfWork, row: TaskRow, dependencies: Sequence[str], then: str) -> None:
    shown = [ids.show_task(dependency) for dependency in dependencies]
    work.emit(row, "dependency_failed", data={"dependencies": shown, "then": then})


async def _continue_without(
    work: UnitOfWork, pairs: Sequence[tuple[str, str]], ends: Mapping[str, FailedDependency]
) -> None:
    """Flip these edges (dependent, dependency), and record with each how the dependency ended."""
    items = [(dependent, dependency, as_json(ends[dependency])) for dependent, dependency in sorted(pairs)]
    if items:
        await _count_flips(work, await work.tx.all("end_edges", items=items))


async def _alert_creators(
    work: UnitOfWork, dependents: Sequence[TaskRow], dependencies: Mapping[str, Sequence[str]]
) -> None:
    """Raise one alert for each failed dependency and each creator of dependents, however many dependents there are."""
    if not dependents:
        return
    bodies = await work.tx.all("creators_of", items=[(row.id,) for row in dependents])
    creators = {body["task_id"]: body["creator"] for body in bodies}
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in dependents:
        for dependency in dependencies[row.root_id]:
            counts[row.workspace, dependency, creators.get(row.id) or "unknown"] += 1
    for (workspace, dependency, creator), count in sorted(counts.items()):
        work.alert(workspace, "dependency_failed", dependency, creator=creator, count=count)


async def cancel_dependents(work: UnitOfWork, roots: Collection[str], only: Collection[str] | None = None) -> None:
    """Dependencies were cancelled: each dependent is cancelled, waits or continues without, and so on down.

    With `only`, handle just these direct dependents: the others were handled at the time.
    """
    while roots:
        await _lose_judges(work, set(roots))
        await _take_outputs(work, set(roots))
        dependents = await _dependents(work, roots, only)
        ends = await failed_ends(work, roots) if dependents else {}
        only, cancelled, satisfied, passed = None, set(), [], []
        for row in await lock_newest(work, dependents):
            settings = await work.settings_of(row)
            edges = dependents[row.root_id]
            without = [e.dependency for e in edges if e.survives(settings) and e.dependency in ends]
            passed += [(row.root_id, dependency) for dependency in without]
            dependencies = [edge.dependency for edge in edges if edge.dependency not in without]
            if settings.on_dependency_cancelled == "satisfy":
                satisfied += [(row.root_id, dependency) for dependency in dependencies]
            elif dependencies and settings.on_dependency_cancelled == "cancel" and row.status == State.PENDING:
                cancel_row(work, row, f"Parent {ids.show_task(dependencies[0])} cancelled")
                cancelled.add(row.root_id)
        await _continue_without(work, passed, ends)
        if satisfied:
            await _count_flips(work, await work.tx.all("satisfy_pairs", items=sorted(satisfied)))
        roots = cancelled


def cancel_row(work: UnitOfWork, row: TaskRow, reason: str, *, verb: str = "cancelled") -> None:
    """Cancel one locked task. The verb says what ended it, and appears as the reason in its history."""
    fence = row.fence if row.held else None
    if row.held:
        work.end_attempt(row, "cancelled", reason=verb, error=reason)
    path = work.move(row, "cancel")
    row.cancel_reason = reason
    row.failure_reason = verb
    row.hold = row.blocked_reason = row.block_check_at = row.available_at = None
    work.emit(row, verb, path, reason=reason, fence=fence)


async def _dependents(
    work: UnitOfWork, roots: Collection[str], only: Collection[str] | None
) -> dict[str, list[OpenEdge]]:
    """Lineages with an open edge to one of these, and those edges."""
    dependents: dict[str, list[OpenEdge]] = defaultdict(list)
    if roots:
        for edge in await work.tx.all("open_dependents", items=[(root,) for root in sorted(roots)]):
            if only is None or edge["dependent"] in only:
                found = OpenEdge(edge["dependency"], bool(edge["waits"]), bool(edge["any_end"]))
                dependents[edge["dependent"]].append(found)
    return dependents


async def apply_ended_dependencies(work: UnitOfWork, edges: dict[str, list[Dependency]]) -> None:
    """Apply the effect of dependencies that had already ended without success, as if they ended now."""
    states = {dependency.root: dependency.status for above in edges.values() for dependency in above}
    cancelled = {root for root, status in states.items() if status == State.CANCELLED}
    failed = {root for root, status in states.items() if status in {State.DEAD_LETTERED, State.FAILED}}
    if cancelled:
        await cancel_dependents(work, cancelled, only=edges.keys())
    if failed:
        await fail_dependents(work, failed, only=edges.keys())


async def _lose_judges(work: UnitOfWork, roots: set[str]) -> None:
    """Handle judging tasks that ended without success: they will give no verdict."""
    rows = work.rows.values()
    lost = sorted({row.root_id for row in rows if row.validation == verdict.JUDGING and row.root_id in roots})
    if lost:
        await work.tx.run("lose_judges", items=[(root,) for root in lost], now=work.now)


async def _take_outputs(work: UnitOfWork, roots: set[str]) -> None:
    """Stop waiting for verdicts on cancelled tasks."""
    for row in [row for row in work.rows.values() if row.validation in verdict.LATER and row.root_id in roots]:
        await take_output(work, row)


async def take_output(work: UnitOfWork, row: TaskRow) -> Row | None:
    """Withdraw the output that awaited its verdict; a judge at work on it need not continue."""
    output = await work.tx.one("drop_output", id=row.id)
    if output is None or output["judge_id"] is None:
        return output
    for judge in await lock_newest(work, [output["judge_id"]]):
        if judge.status not in FINAL | SETTLED:
            cancel_row(work, judge, f"the verdict on {ids.show_task(row.id)} is no longer needed")
            await cancel_dependents(work, {judge.root_id})
    return output
