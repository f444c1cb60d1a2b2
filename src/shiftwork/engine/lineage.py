"""Makes new rows from old ones, for retries as new tasks and for reruns, and keeps a row in the right lane."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.engine.prepare import Prepared, without_times
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import PATH_PENDING, PATH_READY, write_rows
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import ids
from shiftwork.model.states import State, move, write_path
from shiftwork.waits import approval_guard as guard

_PATH_RETRYING = write_path(move(State.CREATED, "accept", "defer"))


async def add_retry_row(work: UnitOfWork, row: TaskRow, delay: float, *, priority: float, lane: int) -> TaskRow:
    """The next attempt as a new task of the same lineage; the failed row stays as it is."""
    path = PATH_READY
    kept = {"attempts": row.attempts, "session_id": row.session_id, "work_dir": row.work_dir}
    retry = await _copy(work, row, retry_of=row.id, priority=priority, lane=lane, **kept)
    if delay > 0:
        path = _PATH_RETRYING
        retry.status, retry.available_at = State.RETRYING.value, work.now + delay
    retry.idempotency_key = row.idempotency_key
    await _write_copy(work, row, retry, "retried", path)
    await work.tx.run("copy_steps", old=row.id, new=retry.id)
    await work.tx.run("copy_step_artifacts", old=row.id, new=retry.id)
    await work.tx.run("move_effects", old=row.id, new=retry.id)
    if row.idempotency_key is not None:
        await work.tx.run("move_keys", items=[(row.workspace, row.idempotency_key, row.id, retry.id)])
    return retry


async def add_rerun_row(work: UnitOfWork, row: TaskRow, *, waiting: int, changed: Prepared | None = None) -> TaskRow:
    """The same work as a new task with a fresh session; `changed` replaces its fields."""
    rerun = await _copy(
        work, row, rerun_of=row.id, force_fresh_session=True, trigger_type="manual_rerun", waiting=waiting
    )
    rerun.last_agent_id = rerun.last_runtime_id = rerun.expires_at = rerun.due_at = None
    path = PATH_READY
    if waiting:
        rerun.status, path = State.PENDING.value, PATH_PENDING
    if changed is not None:
        rerun.lane = (await work.engine.lanes.intern_in(work.tx, [changed.lane]))[changed.lane]
    await _write_copy(work, row, rerun, "rerun", path, None if changed is None else changed.body)
    return rerun


_COPIED = (
    *("workspace", "type", "lane", "priority", "boost", "deadline", "expires_at", "due_at", "path_weight"),
    *("root_id", "parent_id", "dag_id", "max_attempts", "timeout_sec", "validation", "at_most_once", "own_settings"),
    *("tallied", "estimated_cost", "target_agent_id", "issue_id", "budget_id", "trigger_type"),
    *("last_agent_id", "last_runtime_id"),
)
"""What a retry or a rerun as a new task takes over."""


async def _copy(work: UnitOfWork, row: TaskRow, **changes: Any) -> TaskRow:
    settings = await work.settings_of(row)
    copy = TaskRow(
        **{
            **{name: getattr(row, name) for name in _COPIED},
            "id": work.engine.ids.make(work.now),
            "status": State.READY.value,
            "created_at": work.now if not settings.retry.keep_position or "rerun_of" in changes else row.created_at,
            "ordered_at": work.now if not settings.retry.keep_position or "rerun_of" in changes else row.ordered_at,
            "updated_at": work.now,
            **changes,
        }
    )
    copy.place(settings, work.now)
    return copy


async def _write_copy(
    work: UnitOfWork, old: TaskRow, copy: TaskRow, verb: str, path: str, changed: str | None = None
) -> None:
    stored = await work.tx.one("read_bodies", items=[(old.id,)])
    assert stored is not None
    body: str = stored["body"] if changed is None else changed
    tags = await work.tx.all("tags_of", items=[(old.id,)])
    event_data: dict[str, Any] = {"of": ids.show_task(old.id)}
    settings = await work.settings_of(old)
    if copy.status == State.READY and (
        request := await guard.stop_copy(work, copy, settings, body, [tag["tag"] for tag in tags])
    ):
        path, event_data = guard.PATH_STOPPED, {**event_data, **request.event_data}
    if changed is None and copy.rerun_of is not None:
        body = as_json(without_times(msgspec.json.decode(body)))
    await write_rows(work, [copy], [body])
    await work.tx.insert("insert_tags", [(copy.workspace, tag["tag"], copy.id) for tag in tags])
    work.supersede(old, copy.id)
    work.attach(copy)
    if copy.dag_id != copy.root_id or await work.tx.all("lock_dags", items=[(copy.dag_id,)]):
        work.count_in_dag(copy.dag_id, None, copy.status)
    work.emit(copy, verb, path, data=event_data)
