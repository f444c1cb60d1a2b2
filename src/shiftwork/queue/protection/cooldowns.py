"""Cooldowns in the store: a rate limit that one agent met holds back all who share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shiftwork.core.keys import Key

if TYPE_CHECKING:
    from shiftwork.policy.decide import ProviderWait
    from shiftwork.policy.provider_messages import Kind
    from shiftwork.queue.work import Work

NOTHING = Key()


WORDS: dict[Kind, str] = {
    "rate_limit": "rate limit",
    "overloaded": "overload",
    "quota": "used-up quota",
    "auth": "refused credentials",
}


class Report(NamedTuple):
    """A provider's limit that an agent has met: where, as far as it said, and how long to wait."""

    workspace: str
    type: str
    task_id: str
    fence: int
    agent_id: str
    named: Key
    met: ProviderWait


async def begin(work: Work, report: Report) -> None:
    """Hold back the reporter for the whole wait, the others for their share of it, and ask everybody to go slow."""
    found = await _key(work, report)
    if found is None:
        return
    key, wait = found.text, report.met.wait_sec
    settings = (await work.engine.book.of(work.tx, report.workspace)).settings(report.type)
    share, slow = settings.cooldown.others, wait / 2
    reason = _reason(report)
    rows = [(report.workspace, key, "slowdown", "", reason, work.now + slow)]
    if share:
        rows.append((report.workspace, key, "cooldown", "", reason, work.now + share * wait))
    if 0 < share < 1:
        rows.append((report.workspace, key, "cooldown", report.agent_id, reason, work.now + wait))
    actor = work.caller.for_agent(report.agent_id)
    await work.tx.run("close_until", items=sorted(rows, key=lambda row: row[:4]), now=work.now, actor=actor)
    data = {"key": key, "wait": round(slow, 3), "agent": report.agent_id, "until": work.now + wait}
    work.tell_of(report.workspace, "queue_slowdown", data=data)


def _reason(report: Report) -> str:
    signal = report.met.signal
    window = f"{signal.window} " if signal.window else ""
    return f"{window}{WORDS[signal.kind]} met by {report.agent_id}"


async def _key(work: Work, report: Report) -> Key | None:
    """The key of the report, completed from agent and claim, as far as the limit reaches.

    A limit of the account is not the model's. An overloaded model is overloaded for every account; where the model is
    not known, nothing is held back. Where nothing is known, a limit is that of the type.
    """
    agent = await work.tx.one("read_agent", workspace=report.workspace, id=report.agent_id)
    handed = await work.tx.one("models_of", items=[(report.task_id,)])
    model = handed["model"] if handed is not None and handed["fence"] == report.fence else None
    named, scope = report.named, report.met.signal.scope
    known = Key(
        named.provider or (agent["provider"] if agent else None),
        named.account or (agent["account"] if agent and scope != "provider" else None),
        named.model or (model if scope != "account" else None),
    )
    if scope == "provider" and known.model is None:
        return None
    return known if known != NOTHING else Key(type=report.type)
