"""Cooldowns in the store: a rate limit that one agent hits holds back all that share it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.accounts import policy
from shiftwork.accounts.windows import AccountName, AccountWindows
from shiftwork.engine.decide import ProviderWait
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import Participant, UnitOfWork
from shiftwork.model.keys import Key
from shiftwork.providers import quota_headers
from shiftwork.providers.limit_signal import LimitSignal, WindowState
from shiftwork.providers.provider_messages import Kind
from shiftwork.store.store import Row

NOTHING = Key()


WORDS: dict[Kind, str] = {
    "rate_limit": "rate limit",
    "overloaded": "overload",
    "quota": "used-up quota",
    "auth": "refused credentials",
}


class ProviderLimitReport(NamedTuple):
    """A provider's limit that an agent hit: what it applies to, as far as reported, and how long to wait."""

    workspace: str
    type: str
    task_id: str
    fence: int
    agent_id: str
    named: Key
    met: ProviderWait
    data: Any = None
    """From a failure, with the headers of the provider's answer."""


class Cooldowns(Participant):
    """Provider limits reported in one unit of work."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._reports: list[ProviderLimitReport] = []

    def report(self, row: TaskRow, named: Key, met: ProviderWait, data: Any) -> None:
        """Record that the holder of this task hit a provider's limit."""
        assert row.agent_id is not None
        claim = row.workspace, row.type, row.id, row.fence, row.agent_id
        self._reports.append(ProviderLimitReport(*claim, named, met, data))

    async def save(self) -> None:
        for report in self._reports:
            await begin(self.work, report)


async def is_account_known(work: UnitOfWork, row: TaskRow, named: Key) -> bool:
    """Whether the task's holder, or its report, names the account used."""
    if named.provider is not None or named.account is not None:
        return True
    agent = await work.tx.one("read_agent", workspace=row.workspace, id=row.agent_id)
    return agent is not None and any(agent[name] is not None for name in ("provider", "account", "accounts"))


async def has_other_account(work: UnitOfWork, row: TaskRow, named: Key) -> bool:
    """Whether any agent uses another account than the task's holder, whose account is known."""
    agent = await work.tx.one("read_agent", workspace=row.workspace, id=row.agent_id)
    if agent is None or agent["provider"] is None or (named.account or agent["account"] or agent["accounts"]) is None:
        return False
    mine = {"provider": agent["provider"], "account": named.account or agent["account"] or ""}
    found = await work.tx.one("has_other_account", workspace=row.workspace, **mine)
    return found is not None and bool(found["found"])


async def begin(work: UnitOfWork, report: ProviderLimitReport) -> None:
    """Hold back the reporter for the whole wait, the others for their share of it, and ask all to slow down."""
    if report.met.signal.kind == "auth":
        await _rest_account(work, report)
        return
    await _update_account(work, report)
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
    work.emit_for(report.workspace, "queue_slowdown", data={**data, "signal": _plain(await signal_of(work, report))})


async def _update_account(work: UnitOfWork, report: ProviderLimitReport) -> None:
    """Update the account's windows from the headers of the answer and from the refusal itself."""
    signal = await signal_of(work, report)
    if signal.provider is None or signal.account is None:
        return
    name, windows = AccountName(report.workspace, signal.provider, signal.account), work.part(AccountWindows)
    windows.report(name, quota_headers.in_report(report.data, work.now))
    if signal.kind == "rate_limit" and report.met.is_named:
        at = signal.resets_at or work.now + signal.wait_sec
        window = signal.window or policy.name_for(at - work.now)
        state = WindowState(window, "rejected", signal.utilization, at, model=signal.model)
        windows.report(name, [state], of_model=signal.scope == "model" and report.met.signal.window is None)


async def _rest_account(work: UnitOfWork, report: ProviderLimitReport) -> None:
    """Refused credentials: this account alone is held back until a person lifts its cooldown.

    If the account has no name, only the agent is held back: others of the provider may have other keys.
    """
    signal = await signal_of(work, report)
    key = Key(signal.provider, signal.account)
    who = "" if key.account is not None else report.agent_id
    reason = _reason(report)
    actor = work.caller.for_agent(report.agent_id)
    row = (report.workspace, key.text, "cooldown", who, reason, None)
    await work.tx.run("close_until", items=[row], now=work.now, actor=actor)
    data = {"key": key.text, "until": None, "reason": reason, "agent": report.agent_id, "signal": _plain(signal)}
    work.emit_for(report.workspace, "cooldown_started", data=data)


def _plain(signal: LimitSignal) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(signal)
    return plain


async def signal_of(work: UnitOfWork, report: ProviderLimitReport) -> LimitSignal:
    """All that is known of a provider's message: from the report, the agent's registration and the claim."""
    agent, handed = await _known(work, report)
    named, signal = report.named, report.met.signal
    return LimitSignal(
        kind=signal.kind,
        scope=signal.scope,
        provider=named.provider or signal.provider or (agent["provider"] if agent else None),
        account=named.account or signal.account or handed.get("account") or (agent["account"] if agent else None),
        model=named.model or signal.model or handed.get("model"),
        window=signal.window,
        utilization=signal.utilization,
        resets_at=signal.resets_at,
        wait_sec=report.met.wait_sec,
    )


async def _known(work: UnitOfWork, report: ProviderLimitReport) -> tuple[Row | None, Row]:
    """The agent's registration, and the model and account assigned with the claim."""
    agent = await work.tx.one("read_agent", workspace=report.workspace, id=report.agent_id)
    handed = await work.tx.one("handed_with_claims", items=[(report.task_id,)])
    return agent, handed if handed is not None and handed["fence"] == report.fence else {}


def _reason(report: ProviderLimitReport) -> str:
    signal = report.met.signal
    window = f"{signal.window} " if signal.window else ""
    return f"{window}{WORDS[signal.kind]} hit by {report.agent_id}"


async def _key(work: UnitOfWork, report: ProviderLimitReport) -> Key | None:
    """The key of the report, completed from agent and claim, limited to the scope of the limit.

    An account's limit does not name the model. An overloaded model is overloaded for every account; if the model is
    unknown, nothing is held back. If nothing is known, the limit applies to the type.
    """
    signal, named, scope = await signal_of(work, report), report.named, report.met.signal.scope
    known = Key(
        signal.provider,
        named.account or (signal.account if scope != "provider" else None),
        named.model or (signal.model if scope != "account" else None),
    )
    if scope == "provider" and known.model is None:
        return None
    return known if known != NOTHING else Key(type=report.type)
