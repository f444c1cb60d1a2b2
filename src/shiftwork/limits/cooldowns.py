"""Cooldowns in the store: a rate limit that one agent hits holds back all that share it."""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.engine.decide import ProviderWait
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import Participant, UnitOfWork
from shiftwork.model.keys import Key
from shiftwork.providers.provider_messages import Kind

NOTHING = Key()


WORDS: dict[Kind, str] = {
    "rate_limit": "rate limit",
    "overloaded": "overload",
    "quota": "used-up quota",
    "auth": "refused credentials",
}


class ProviderLimitReport(NamedTuple):
    """A provider's limit that an agent has met: where, as far as it said, and how long to wait."""

    workspace: str
    type: str
    task_id: str
    fence: int
    agent_id: str
    named: Key
    met: ProviderWait


class Cooldowns(Participant):
    """Provider limits that are reported in one unit of work."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._reports: list[ProviderLimitReport] = []

    def report(self, row: TaskRow, named: Key, met: ProviderWait) -> None:
        """The agent that holds this task met a provider's limit."""
        assert row.agent_id is not None
        self._reports.append(ProviderLimitReport(row.workspace, row.type, row.id, row.fence, row.agent_id, named, met))

    async def save(self) -> None:
        for report in self._reports:
            await begin(self.work, report)


async def begin(work: UnitOfWork, report: ProviderLimitReport) -> None:
    """Hold back the reporter for the whole wait, the others for their share of it, and ask everyone to go slow."""
    found = await _key(work, report)
    if found is None:
        return
    key, wait = found.text, report.met.wait_sec
    settings = (await work.engine.settings_cache.load(work.tx, report.workspace)).settings(report.type)
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
    work.emit_for(report.workspace, "queue_slowdown", data=data)


def _reason(report: ProviderLimitReport) -> str:
    signal = report.met.signal
    window = f"{signal.window} " if signal.window else ""
    return f"{window}{WORDS[signal.kind]} met by {report.agent_id}"


async def _key(work: UnitOfWork, report: ProviderLimitReport) -> Key | None:
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
