"""Implements the operations on a task's log. A log consists of the task's message events, each with many lines."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from shiftwork.engine import event_log, read
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import for_each, lock_claims, refusal
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check, ids
from shiftwork.model.errors import NotFound
from shiftwork.model.outcome import Outcome, Token, unknown
from shiftwork.model.states import ENDED
from shiftwork.operation.local import Call, implements, only
from shiftwork.store.store import Row, Tx
from shiftwork.task_logs.api import ClaimLogs, LogBatch, TaskLogs
from shiftwork.task_logs.model import MAX_LINES, MAX_LOG, LogLine, LogPage, NewLog, NewLogItem, NewLogLine

POLL_SEC = 0.2
"""The minimum time between two polls of a task, however many events other tasks have."""

LOOK_AGAIN_SEC = 1.0
"""Poll at least this often: an event may be committed after others with higher numbers."""

FULL = f"[the log has reached {MAX_LOG:,} characters: later lines are dropped]"


class Entry(NamedTuple):
    """Checked lines under a claim."""

    token: Token
    lines: Sequence[NewLogLine]


@implements(ClaimLogs.log)
async def log(call: Call, token: str | Token, lines: Sequence[NewLogLine | Mapping[str, Any]]) -> Outcome:
    given = [_checked(each, f"lines[{place}]") for place, each in enumerate(lines)]
    return only(await _write(call, [Entry(await call.token(token), given)]))


@implements(LogBatch.log)
async def log_many(call: Call, logs: Sequence[NewLog | Mapping[str, Any]]) -> list[Outcome]:
    given = [
        each if isinstance(each, NewLog | NewLogItem) else check.read(each, NewLog, f"logs[{place}]")
        for place, each in enumerate(logs)
    ]
    tokens = await call.tokens([each.token for each in given])
    entries: list[Entry | NotFound] = [
        token
        if isinstance(token, NotFound)
        else Entry(token, [_checked(line, f"logs[{place}].lines") for line in each.lines])
        for place, (token, each) in enumerate(zip(tokens, given, strict=True))
    ]
    return await _write(call, entries)


def _checked(line: NewLogLine | Mapping[str, Any], where: str) -> NewLogLine:
    found = check.read(line, NewLogLine, where)
    check.text(found.text, f"{where}.text")
    return found


async def _write(call: Call, entries: Sequence[Entry | NotFound]) -> list[Outcome]:
    known = [unknown(entry) if isinstance(entry, NotFound) else entry for entry in entries]
    return await call.run(for_each, write, known)


async def write(tx: Tx, engine: Engine, caller: Caller, entries: Sequence[Entry]) -> list[Outcome]:
    """Write one event per claim, in the order of the calls, because each task's row stays locked until the commit."""
    rows = await lock_claims(tx, caller, [entry.token for entry in entries])
    live = [row["id"] for row in rows.values()]
    sizes = defaultdict(
        int, {row["task_id"]: int(row["size"]) for row in await tx.all("log_sizes", items=[(id_,) for id_ in live])}
    )
    before = dict(sizes)
    work = UnitOfWork(tx, engine, caller)
    outcomes = []
    for entry in entries:
        row = rows.get(entry.token.id)
        task_id = ids.show_task(entry.token.id)
        if error := refusal(engine, caller, entry.token, row):
            outcomes.append(Outcome(task_id, error=error))
            continue
        assert row is not None
        if kept := _fitting(entry.lines, sizes, row["id"], tx.now):
            work.add_claim_event(row, "message", fence=entry.token.fence, data={"kind": "log", "lines": kept})
        outcomes.append(Outcome(task_id, row["status"]))
    if grown := sorted((id_, size) for id_, size in sizes.items() if before.get(id_) != size):
        await tx.run("save_log_sizes", items=grown)
    await work.save_events()
    return outcomes


def _fitting(lines: Sequence[NewLogLine], sizes: dict[str, int], task: str, now: float) -> list[dict[str, Any]]:
    """The lines that fit into the log; the first that does not fit is replaced by a notice."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        if sizes[task] > MAX_LOG:
            break
        sizes[task] += len(line.text) + 1
        at = now if line.at is None else line.at
        full = sizes[task] > MAX_LOG
        level, text = ("warning", FULL) if full else (line.level, line.text)
        kept.append({"at": at, "level": level, "text": text})
    return kept


@implements(TaskLogs.logs)
async def logs(call: Call, task_id: str, *, after: int = 0, limit: int = MAX_LINES, wait: float = 0) -> LogPage:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        newest, page = await call.read(lambda tx: _read_page(tx, call, task_id, after, limit))
        left = deadline - loop.time()
        if page.lines or page.ended or left <= 0:
            return page
        looked = loop.time()
        await call.shared.event_waiters.park(newest, min(left, LOOK_AGAIN_SEC))
        await asyncio.sleep(min(max(0.0, looked + POLL_SEC - loop.time()), max(0.0, deadline - loop.time())))


async def _read_page(tx: Tx, call: Call, task_id: str, after: int, limit: int) -> tuple[int, LogPage]:
    """The page, and the end of the event log as of before the page was read."""
    newest = await event_log.last(tx)
    return newest, await _page(tx, call.engine, call.workspace, task_id, after, limit)


async def _page(tx: Tx, engine: Engine, workspace: str, task_id: str, after: int, limit: int) -> LogPage:
    uuid = await read.find(tx, workspace, task_id)
    row = await tx.one("status_of_task", id=uuid, workspace=workspace)
    if row is None:
        raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
    events = await tx.all("messages_after", id=uuid, after=after, count=limit)
    lines = [line for event in events for line in _lines(event)]
    last = int(events[-1]["seq"]) if events else after
    return LogPage(lines, last, row["status"], row["status"] in ENDED and len(events) < limit)


def _lines(event: Row) -> list[LogLine]:
    data = msgspec.json.decode(event["data"] or "{}")
    fixed: Any = {"seq": event["seq"], "fence": event["fence"], "agent_id": event["actor"].removeprefix("agent:")}
    if data.get("kind") == "log":
        return [LogLine(kind="log", **fixed, **line) for line in data["lines"]]
    kind = data.get("kind", "text")
    level: Any = "error" if kind == "error" else "info"
    about = cast(dict[str, Any] | None, data.get("data"))
    return [LogLine(at=event["at"], level=level, kind=kind, text=data.get("text", ""), data=about, **fixed)]
