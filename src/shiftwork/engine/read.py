"""Reads tasks, DAGs, results and history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine import rank, retry
from shiftwork.engine.engine import Engine
from shiftwork.engine.failed_ends import failed_dependencies
from shiftwork.engine.rows import TaskRow, load
from shiftwork.engine.unit_of_work import own_settings
from shiftwork.model import check, ids
from shiftwork.model.errors import NotFound, StoreDamaged
from shiftwork.model.events import names
from shiftwork.model.history import Attempt, Event
from shiftwork.model.states import FINAL, State
from shiftwork.model.task import Claim, Dag, Failed, Result, Task, Verdict, dollars
from shiftwork.search import short_ids
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx
from shiftwork.waits.model import WAITS
from shiftwork.waits.policy import wait_of


class TaskContext(NamedTuple):
    """What other tables hold about a task."""

    dependencies: Sequence[Row] = ()
    attempts: Sequence[Row] = ()
    letters: Sequence[Row] = ()
    tags: Sequence[str] | None = None
    progress: Row | None = None
    heartbeat_at: float | None = None
    waits: Sequence[Row] = ()
    output: Row | None = None
    incomplete: bool = False
    model: str | None = None
    account: str | None = None
    aliases: Sequence[Row] = ()


async def find(tx: Tx, workspace: str, reference: str, *, exact: bool = False) -> str:
    """The UUID of a task named by its id in either written form, by the caller's own name for it, or by a short id.

    With `exact`, not by a short id: a name from another system could match the end of one of our ids.
    """
    (uuid,) = await find_many(tx, workspace, [reference])
    if uuid is None and not exact:
        uuid = await short_ids.find(tx, workspace, reference)
    if uuid is None:
        raise NotFound(f"there is no task {reference!r}", task_id=reference)
    return (await kept(tx, workspace, [uuid])).get(uuid, uuid)


async def kept(tx: Tx, workspace: str, uuids: Sequence[str]) -> dict[str, str]:
    """The tasks behind ids of merged submissions."""
    rows = await tx.all("aliases_of", items=[(uuid,) for uuid in uuids]) if uuids else ()
    return {row["id"]: row["task_id"] for row in rows if row["workspace"] == workspace}


async def find_many(tx: Tx, workspace: str, references: Sequence[str]) -> list[str | None]:
    """The same for many names; None for an unknown name. An id is returned even if no such task exists."""
    found = {reference: ids.parse(check.name(reference, "task_id")) for reference in references}
    names = sorted(reference for reference, uuid in found.items() if uuid is None)
    if names:
        for row in await tx.all("find_names", items=[(name,) for name in names], workspace=workspace):
            found[row["name"]] = str(row["task_id"]) if row["known"] else None
    for name in names:
        if found[name] is None and (archived := await tx.one("find_archived_name", workspace=workspace, name=name)):
            found[name] = str(archived["id"])
    return [found[reference] for reference in references]


def find_dag(reference: str) -> str:
    """The UUID of a DAG named by either written form of its id."""
    uuid = ids.parse(reference)
    if uuid is None:
        raise NotFound(f"there is no DAG {reference!r}", dag_id=reference)
    return uuid


async def read_body(tx: Tx, task_id: str) -> dict[str, Any]:
    """The body of a task, including updates."""
    row = await tx.one("read_bodies", items=[(task_id,)])
    if row is None:
        raise NotFound(f"there is no task {ids.show_task(task_id)}")
    return _body(task_id, row["body"])


def _body(task_id: str, text: str | bytes) -> dict[str, Any]:
    """Names the task whose body cannot be read, so that the others stay readable."""
    try:
        body: dict[str, Any] = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        shown = ids.show_task(task_id)
        raise StoreDamaged(f"the body of {shown} is not valid JSON: {error}", task_id=shown) from error
    return body


async def tasks(tx: Tx, engine: Engine, workspace: str, uuids: Sequence[str]) -> list[Task]:
    """Whole tasks, in the order requested; those of other workspaces do not exist here."""
    items = [(uuid,) for uuid in uuids]
    if not items:
        return []
    whole = [row for row in await tx.all("read_whole_tasks", items=items) if row["workspace"] == workspace]
    rows = [load(row) for row in whole]
    context = await _context(tx, whole, rows)
    resolver = await engine.settings_cache.load(tx, workspace)
    built = {}
    for row, found in zip(rows, whole, strict=True):
        body = _body(row.id, found["body"])
        settings = resolver.settings(row.type, own_settings(body) if row.own_settings else None)
        extra = context[row.id]
        if settings.require_decision_report and row.status == State.RUNNING:
            extra = extra._replace(incomplete=bool(await tx.all("incomplete_marks", items=[(row.id, row.fence)])))
        built[row.id] = build(row, body, settings, tx.now, extra)
    unknown = [uuid for uuid in uuids if uuid not in built]
    for alias, uuid in (await kept(tx, workspace, unknown)).items():
        for task in await tasks(tx, engine, workspace, [uuid]):
            built[alias] = task
    for uuid in uuids:
        if uuid not in built and (old := await _archived(tx, workspace, uuid)):
            built[uuid] = old
    return [built[uuid] for uuid in uuids if uuid in built]


async def _archived(tx: Tx, workspace: str, uuid: str) -> Task | None:
    row = await tx.one("read_archive", id=uuid)
    if row is None or row["workspace"] != workspace:
        return None
    return msgspec.json.decode(row["task"], type=Task)


async def _context(tx: Tx, whole: Sequence[Row], rows: Sequence[TaskRow]) -> dict[str, TaskContext]:
    async def more(statement: str, found: str, of: str = "id", by: str = "task_id") -> dict[str, list[Row]]:
        items = sorted({(row[of],) for row in whole if row[found]})
        return _grouped(await tx.all(statement, items=items) if items else (), by)

    edges = await more("edges_of", "has_edges", of="root_id", by="dependent")
    attempts = await more("read_attempts", "has_attempts")
    letters = await more("letters_of", "has_letters")
    tags = await more("tags_of", "has_tags")
    progress = await more("progress_of", "has_progress")
    aliases = await more("alias_names", "has_aliases", of="root_id")
    beats = {row["id"]: row["runtime_heartbeat_at"] for row in whole}
    parked = [(row.root_id,) for row in rows if row.hold in WAITS]
    waits = _grouped(await tx.all("open_waits_of", items=parked), "root_id") if parked else {}
    awaited = [(row.id,) for row in rows if row.status == State.VALIDATING]
    outputs = {row["task_id"]: row for row in await tx.all("read_outputs", items=awaited)} if awaited else {}
    held = [(row.id,) for row in rows if row.held]
    handed = {row["task_id"]: row for row in (await tx.all("handed_with_claims", items=held) if held else ())}
    return {
        row.id: TaskContext(
            edges[row.root_id],
            attempts[row.id],
            letters[row.id],
            [tag["tag"] for tag in tags[row.id]],
            progress[row.id][0] if row.id in progress else None,
            beats[row.id],
            waits.get(row.root_id, ()) if row.hold in WAITS else (),
            outputs.get(row.id),
            model=handed[row.id]["model"] if row.id in handed else None,
            account=handed[row.id]["account"] if row.id in handed else None,
            aliases=aliases.get(row.root_id, ()),
        )
        for row in rows
    }


NOTHING = TaskContext()


async def before_claim(tx: Tx, rows: Sequence[Row]) -> dict[str, TaskContext]:
    """The context of tasks that were tried before or had dependencies; most tasks need no query."""
    rows = [row for row in rows if _may_have_edges(row) or row["round"] > 1]
    if not rows:
        return {}
    items = [(row["id"],) for row in rows if row["fence"]]
    roots = [(row["root_id"],) for row in rows if _may_have_edges(row)]
    attempts = _grouped(await tx.all("read_attempts", items=items), "task_id") if items else {}
    progress = {row["task_id"]: row for row in await tx.all("progress_of", items=items)} if items else {}
    again = [(row["id"],) for row in rows if row["round"] > 1]
    letters = _grouped(await tx.all("letters_of", items=again), "task_id") if again else {}
    edges = _grouped(await tx.all("edges_of", items=sorted(set(roots))), "dependent") if roots else {}
    if not attempts and not edges and not progress:
        return {}
    return {
        row["id"]: TaskContext(
            edges.get(row["root_id"], ()),
            attempts.get(row["id"], ()),
            letters.get(row["id"], ()),
            progress=progress.get(row["id"]),
        )
        for row in rows
    }


def _may_have_edges(row: Row) -> bool:
    """A task that has run before may since have waited for tasks, such as its subtasks."""
    return row["fence"] > 0 or row["dag_id"] != row["id"] or '"dependencies"' in row["body"]


def _grouped(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[column]].append(row)
    return groups


_SAME = (
    *(
        "type",
        "status",
        "priority",
        "created_at",
        "updated_at",
        "version",
        "fence",
        "round",
        "attempts",
        "max_attempts",
    ),
    *(
        "deadline",
        "expires_at",
        "blocked_reason",
        "hold",
        "external_id",
        "idempotency_key",
        "target_agent_id",
        "issue_id",
    ),
    *("trigger_type", "session_id", "work_dir", "timeout_sec", "available_at", "claimed_at", "started_at"),
    *("cancel_reason", "failure_reason"),
)
"""Columns shown unchanged."""

_WRITTEN = (
    *("title", "tool_name", "trigger_comment_id", "trigger_summary", "created_by", "serial_key", "traceparent"),
    *("tree_budget_usd", "settings", "run_at"),
)
"""Fields of the body shown unchanged."""


def build(row: TaskRow, body: dict[str, Any], settings: Settings, now: float, context: TaskContext) -> Task:
    """One task with all computed fields as of now."""
    result = _result(row, context)
    same: dict[str, Any] = {name: getattr(row, name) for name in _SAME}
    written: dict[str, Any] = {name: body.get(name) for name in _WRITTEN}
    return Task(
        **same,
        **written,
        **_family(row),
        **_priority(row, settings, now),
        **_failure(row, context),
        workspace_id=row.workspace,
        claim=_claim(row, settings, context),
        retry=msgspec.to_builtins(settings.retry),
        payload=body.get("payload", {}),
        spec=_spec(body, row.attempts),
        output=_output(body, result),
        dependencies=[ids.show_task(edge["dependency"]) for edge in context.dependencies],
        blocked_by=[ids.show_task(edge["dependency"]) for edge in context.dependencies if not edge["satisfied"]],
        failed_dependencies=failed_dependencies(context.dependencies),
        blocked=row.blocked_reason is not None,
        merged_ids=[ids.shown(alias["name"]) for alias in context.aliases],
        waits=[wait_of(wait) for wait in context.waits],
        force_fresh_session=bool(row.force_fresh_session),
        tags=list(context.tags) if context.tags is not None else body.get("tags", []),
        delivery=settings.delivery,
        urgency=body.get("urgency", "normal"),
        estimated_cost_usd=None if row.estimated_cost is None else dollars(row.estimated_cost),
        progress=msgspec.json.decode(context.progress["value"]) if context.progress else None,
        completed_at=row.finished_at if row.status == State.COMPLETED else None,
        cancelled_at=row.finished_at if row.status == State.CANCELLED else None,
        result=result,
        incomplete=context.incomplete,
        judge_task_id=_shown(context.output["judge_id"]) if context.output else None,
        cost_usd=dollars(row.cost + (row.attempt_cost if row.held else 0)),
        tokens_used={"input": row.tokens_in, "output": row.tokens_out},
    )


def _family(row: TaskRow) -> dict[str, Any]:
    """The task's ids and its lineage."""
    return {
        "id": ids.show_task(row.id),
        "dag_id": ids.show_dag(row.dag_id),
        "root_task_id": ids.show_task(row.root_id),
        "parent_id": _shown(row.parent_id),
        "retry_of": _shown(row.retry_of),
        "rerun_of": _shown(row.rerun_of),
        "superseded_by": _shown(row.newest_id) if row.newest_id != row.id else None,
    }


def _priority(row: TaskRow, settings: Settings, now: float) -> dict[str, Any]:
    parts = rank.parts(row.rank_facts(), settings, now)
    return {
        "priority_boost_per_minute": row.boost,
        "effective_priority": parts.effective,
        "priority_parts": {name: getattr(parts, name) for name in PARTS},
        "priority_tier": parts.tier,
        "age_minutes": parts.age_minutes,
    }


PARTS = ("base", "age", "deadline", "dependency", "escalation", "percentage", "type")


def _failure(row: TaskRow, context: TaskContext) -> dict[str, Any]:
    failures = _failures(context)
    last = context.letters[-1] if context.letters else None
    buried_at = last["dead_lettered_at"] if last and row.status == State.DEAD_LETTERED else None
    return {
        "failure_history": failures,
        "failed_at": failures[-1].at if failures else None,
        "last_error": failures[-1].error if failures else None,
        "poison_pill": bool(last["poison_pill"]) if last else False,
        "dead_lettered_at": buried_at,
        "finished_at": row.finished_at or buried_at,
    }


def _shown(uuid: str | None) -> str | None:
    return None if uuid is None else ids.show_task(uuid)


def _spec(body: dict[str, Any], failures: int) -> dict[str, Any] | None:
    """The spec for the next attempt: from the second failure on, with the fallback models."""
    spec = body.get("spec")
    if not spec or not spec.get("constraints"):
        return spec
    constraints = dict(spec["constraints"])
    models = retry.models(constraints.get("model_preferences", ()), constraints.get("fallback_models", ()), failures)
    if models:
        constraints["model_preferences"] = list(models)
    return {**spec, "constraints": constraints}


def _claim(row: TaskRow, settings: Settings, context: TaskContext) -> Claim:
    beats = [
        at
        for at in (row.heartbeat_at, context.heartbeat_at)
        if at is not None and row.claimed_at is not None and at >= row.claimed_at
    ]
    return Claim(
        agent_id=row.agent_id,
        runtime_id=row.runtime_id,
        claimed_at=row.claimed_at if row.held else None,
        heartbeat_at=max(beats, default=None) if row.held else None,
        heartbeat_interval_sec=settings.heartbeat_interval_sec,
        assignment_id=ids.token(ids.show_task(row.id), row.fence) if row.held else None,
        ack_required_by=row.ack_by,
        execution_deadline=row.run_until,
        model=context.model if row.held else None,
        account=context.account if row.held else None,
    )


def _output(body: dict[str, Any], result: Result | None) -> dict[str, Any] | None:
    """The output's specification, filled with the submission."""
    output = body.get("output")
    if output is None and (result is None or result.status != "success"):
        return None
    done = result is not None and result.status == "success"
    return {
        "type": None,
        "validation": "none",
        "validation_schema": None,
        **(output or {}),
        "data": result.data if done and result else None,
        "artifacts": result.artifacts if done and result else [],
    }


def _failures(context: TaskContext) -> list[Failed]:
    """Every failed attempt, numbered through all rounds."""
    failed = [attempt for attempt in context.attempts if attempt["outcome"] == "failed"]
    return [
        Failed(
            attempt=number,
            agent=attempt["agent_id"],
            reason=attempt["reason"],
            error=attempt["error"] or attempt["reason"],
            duration_sec=attempt["ended_at"] - (attempt["started_at"] or attempt["claimed_at"]),
            cost_usd=dollars(attempt["cost"]),
            at=attempt["ended_at"],
            note=attempt["note"],
        )
        for number, attempt in enumerate(failed, 1)
    ]


def _result(row: TaskRow, context: TaskContext) -> Result | None:
    """The task's result, the output of its last attempt, or the output that awaits its verdict."""
    if context.output is not None:
        return _unjudged_result(row, context.output)
    ended = [a for a in context.attempts if a["outcome"] in {"completed", "failed"}]
    if not ended:
        return None
    attempt = ended[-1]
    handed = msgspec.json.decode(attempt["result"]) if attempt["result"] else {}
    success = attempt["outcome"] == "completed"
    final = success or row.status in {State.DEAD_LETTERED, State.FAILED}
    return Result(
        task_id=ids.show_task(row.id),
        status=("success" if success else "failed") if final else None,
        data=handed.get("data"),
        text=handed.get("text"),
        artifacts=handed.get("artifacts") or [],
        decision_report=handed.get("decision_report"),
        error=None if success else attempt["error"] or attempt["reason"],
        reason=attempt["reason"],
        execution_time_sec=attempt["ended_at"] - (attempt["started_at"] or attempt["claimed_at"]),
        worker_id=attempt["agent_id"],
        completed_at=attempt["ended_at"] if final else None,
        verdict=_verdict(attempt),
        external_id=row.external_id,
    )


def _unjudged_result(row: TaskRow, output: Row) -> Result:
    handed = msgspec.json.decode(output["result"])
    return Result(
        task_id=ids.show_task(row.id),
        status=None,
        data=handed.get("data"),
        text=handed.get("text"),
        artifacts=handed.get("artifacts") or [],
        decision_report=handed.get("decision_report"),
        error=None,
        reason=None,
        execution_time_sec=output["handed_in_at"] - (row.started_at or output["handed_in_at"]),
        worker_id=row.agent_id,
        completed_at=None,
        external_id=row.external_id,
    )


def _verdict(attempt: Row) -> Verdict | None:
    return msgspec.json.decode(attempt["verdict"], type=Verdict) if attempt["verdict"] else None


def attempt(row: Row) -> Attempt:
    same = {name: row[name] for name in Attempt.__struct_fields__ if name not in {"cost_usd", "counted", "verdict"}}
    return Attempt(**same, counted=bool(row["counted"]), cost_usd=dollars(row["cost"]), verdict=_verdict(row))


async def must_find(tx: Tx, engine: Engine, workspace: str, reference: str) -> str:
    uuid = await find(tx, workspace, reference)
    await must_exist(tx, engine, workspace, uuid)
    return uuid


async def must_exist(tx: Tx, engine: Engine, workspace: str, uuid: str) -> None:
    if not await tasks(tx, engine, workspace, [uuid]):
        raise NotFound(f"there is no task {ids.show_task(uuid)}", task_id=ids.show_task(uuid))


async def dag(tx: Tx, workspace: str, uuid: str) -> Dag:
    """A DAG with its shape and counts; a row that has a successor counts as its newest."""
    stored = await tx.one("read_dag", id=uuid)
    rows = [row for row in await tx.all("tasks_of_dag", dag=uuid) if row["workspace"] == workspace]
    if not rows:
        raise NotFound(f"there is no DAG {ids.show_dag(uuid)}", dag_id=ids.show_dag(uuid))
    newest = {row["newest_id"] for row in rows if row["newest_id"]}
    old = {row["root_id"] for row in rows if row["root_id"] != row["id"]}
    counted = [row for row in rows if row["id"] in newest or (row["id"] == row["root_id"] and row["id"] not in old)]
    nodes = sorted(row["id"] for row in rows if row["id"] == row["root_id"])
    waiting = {edge["dependent"] for edge in await tx.all("edges_of_dag", dag=uuid)}
    awaited = {edge["dependency"] for edge in await tx.all("edges_into_dag", dag=uuid)}
    counts = Counter(row["status"] for row in counted)
    info = await _dag_info(tx, workspace, uuid, stored)
    return Dag(
        id=ids.show_dag(uuid),
        workspace_id=workspace,
        status=_dag_status(stored, counted, rows),
        tasks=[ids.show_task(row["id"]) for row in rows],
        roots=[ids.show_task(node) for node in nodes if node not in waiting],
        leaves=[ids.show_task(node) for node in nodes if node not in awaited],
        counts=dict(counts),
        done=sum(1 for row in counted if row["status"] in FINAL),
        total=len(counted),
        spent_usd=dollars(sum(row["cost"] + row["live_cost"] for row in rows)),
        **info,
    )


async def _dag_info(tx: Tx, workspace: str, uuid: str, stored: Row | None) -> dict[str, Any]:
    budget = await tx.one("dag_ceilings", items=[(workspace, uuid)])
    ceiling = None if budget is None or budget["ceiling"] is None else dollars(budget["ceiling"])
    if stored is not None:
        return {
            "title": stored["title"],
            "created_by": stored["created_by"],
            "budget_ceiling_usd": ceiling,
            "created_at": stored["created_at"],
            "finished_at": stored["finished_at"],
        }
    root = await tx.one("read_tasks", items=[(uuid,)])
    body = await tx.one("read_bodies", items=[(uuid,)])
    fields = msgspec.json.decode(body["body"]) if body else {}
    return {
        "title": fields.get("title"),
        "created_by": fields.get("created_by"),
        "budget_ceiling_usd": ceiling,
        "created_at": root["created_at"] if root else 0.0,
        "finished_at": root["finished_at"] if root else None,
    }


def _dag_status(stored: Row | None, counted: Sequence[Row], rows: Sequence[Row]) -> Any:
    if stored is not None and stored["status"] != "open":
        return stored["status"]
    if stored is None:
        ended = {
            "completed": "completed",
            "cancelled": "cancelled",
            "dead_lettered": "failed",
            "failed": "failed",
        }
        if status := ended.get(counted[0]["status"]):
            return status
    return "running" if any(row["fence"] > 0 for row in rows) else "pending"


def event(row: Row) -> Event:
    data = msgspec.json.decode(row["data"]) if row["data"] else None
    return Event(
        seq=row["seq"],
        at=row["at"],
        workspace_id=row["workspace"],
        task_id=_shown(row["task_id"]),
        dag_id=None if row["dag_id"] is None else ids.show_dag(row["dag_id"]),
        verb=row["verb"],
        names=names(row["verb"], row["path"], data),
        path=row["path"].split(">") if row["path"] else [],
        actor=row["actor"],
        request_id=row["request_id"],
        fence=row["fence"],
        reason=row["reason"],
        data=data,
        type=row["type"],
    )
