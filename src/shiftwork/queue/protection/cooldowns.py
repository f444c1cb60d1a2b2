"""Cooldowns in the store: a rate limit that one agent met holds back all who share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shiftwork.core.keys import Key

if TYPE_CHECKING:
    from shiftwork.queue.work import Work

NOTHING = Key()


class Report(NamedTuple):
    """A rate limit that an agent has met: where, as far as it said, and how long it must wait."""

    workspace: str
    type: str
    task_id: str
    fence: int
    agent_id: str
    named: Key
    wait_sec: float


async def begin(work: Work, report: Report) -> None:
    """Hold back the reporter for the whole wait, the others for their share of it, and ask everybody to go slow."""
    key = (await _key(work, report)).text
    settings = (await work.engine.book.of(work.tx, report.workspace)).settings(report.type)
    share, slow = settings.cooldown.others, report.wait_sec / 2
    reason = f"rate limit met by {report.agent_id}"
    rows = [(report.workspace, key, "slowdown", "", reason, work.now + slow)]
    if share:
        rows.append((report.workspace, key, "cooldown", "", reason, work.now + share * report.wait_sec))
    if 0 < share < 1:
        rows.append((report.workspace, key, "cooldown", report.agent_id, reason, work.now + report.wait_sec))
    actor = work.caller.for_agent(report.agent_id)
    await work.tx.run("close_until", items=sorted(rows, key=lambda row: row[:4]), now=work.now, actor=actor)
    data = {"key": key, "wait": round(slow, 3), "agent": report.agent_id, "until": work.now + report.wait_sec}
    work.tell_of(report.workspace, "queue_slowdown", data=data)


async def _key(work: Work, report: Report) -> Key:
    """What the report names, filled up with what is known of agent and claim; the type where that is nothing."""
    agent = await work.tx.one("read_agent", workspace=report.workspace, id=report.agent_id)
    handed = await work.tx.one("models_of", items=[(report.task_id,)])
    model = handed["model"] if handed is not None and handed["fence"] == report.fence else None
    named = Key(
        report.named.provider or (agent["provider"] if agent else None),
        report.named.account or (agent["account"] if agent else None),
        report.named.model or model,
    )
    return named if named != NOTHING else Key(type=report.type)
