"""Implements the operations on accounts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from shiftwork.accounts import choice, policy, windows
from shiftwork.accounts.api import Accounts
from shiftwork.accounts.model import Account, NewWindow, State, Window
from shiftwork.accounts.windows import AccountName
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_claim, refusal
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import gates
from shiftwork.limits.operations import lift_cooldown
from shiftwork.model import check, ids, keys
from shiftwork.model.errors import InputError
from shiftwork.model.keys import Key
from shiftwork.model.outcome import Outcome, Token
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.providers import quota_headers
from shiftwork.providers.limit_signal import WindowState
from shiftwork.store.store import Row, Tx

_RESTS = frozenset({"cooldown", "account"})


@reading(Accounts.list)
async def list_accounts(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Account]:
    return await _accounts(tx, workspace)


async def _accounts(tx: Tx, workspace: str) -> list[Account]:
    known: dict[tuple[str, str], list[Window]] = defaultdict(list)
    for row in await tx.all("list_windows", workspace=workspace):
        known[row["provider"], row["account"]].append(_window(row, tx.now))
    agents: dict[tuple[str, str], list[str]] = defaultdict(list)
    for agent in await tx.all("list_agents", workspace=workspace):
        for account in choice.accounts_of(agent):
            if agent["provider"] is not None and account is not None:
                agents[agent["provider"], account].append(agent["id"])
    rests: dict[tuple[str, str], Row] = {}
    for gate in await tx.all("read_gates", workspace=workspace):
        place = _resting(gate, tx.now)
        if place is not None and (place not in rests or _later(gate, rests[place])):
            rests[place] = gate
    running = (await choice.load(tx, workspace)).running
    return [
        _account(place, rests.get(place), running.get(place, 0), agents[place], known[place])
        for place in sorted({*known, *agents, *rests})
    ]


def _resting(gate: Row, now: float) -> tuple[str, str] | None:
    """The account that a gate closes entirely, if any."""
    if gate["kind"] not in _RESTS or gate["agent_id"] or not gates.is_shut(gate, now):
        return None
    key = keys.parse(gate["scope"])
    if key.provider is None or key.account is None or key != Key(key.provider, key.account):
        return None
    return key.provider, key.account


def _later(gate: Row, other: Row) -> bool:
    return other["until"] is not None and (gate["until"] is None or bool(gate["until"] > other["until"]))


def _account(
    place: tuple[str, str], gate: Row | None, running: int, agents: list[str], windows: list[Window]
) -> Account:
    state: State = "available" if gate is None else "refused" if gate["until"] is None else "resting"
    return Account(
        *place,
        state=state,
        until=gate["until"] if gate else None,
        reason=gate["reason"] if gate else None,
        running=running,
        agents=agents,
        windows=windows,
    )


def _window(row: Row, now: float) -> Window:
    found = policy.current(windows.load(row), now)
    return Window(
        name=found.name,
        model=found.model or None,
        unit=found.unit,
        capacity=found.capacity if found.unit else None,
        used=found.used if found.unit else None,
        utilization=round(found.utilization, 6),
        length_sec=found.length_sec,
        resets_at=found.resets_at,
    )


async def _one(tx: Tx, name: AccountName) -> Account:
    found = [
        each for each in await _accounts(tx, name.workspace) if (each.provider, each.account) == (name[1], name[2])
    ]
    return found[0] if found else _account((name[1], name[2]), None, 0, [], [])


@transaction(Accounts.set)
async def set_account(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    provider: str,
    account: str,
    *,
    windows: Sequence[NewWindow | Mapping[str, Any]],
) -> Account:
    given = [check.fit(check.read(each, NewWindow, f"windows[{n}]"), f"windows[{n}]") for n, each in enumerate(windows)]
    name, work = AccountName(workspace, provider, account), UnitOfWork(tx, engine, caller)
    await _put(work, name, given)
    work.emit_for(workspace, "account_set", data={"provider": provider, "account": account, "windows": len(given)})
    await work.save_events()
    return await _one(tx, name)


async def _put(work: UnitOfWork, name: AccountName, given: Sequence[NewWindow]) -> None:
    await work.tx.advisory_lock(f"account:{'/'.join(name)}")  # the first windows have no rows to lock yet
    before = (await windows.lock(work.tx, [name]))[name]
    after: dict[tuple[str, str], policy.Window] = {}
    for n, new in enumerate(given):
        length = new.length_sec or policy.length_of(new.name)
        if length is None:
            hint = "Give length_sec, or name it minute, five_hour, day or seven_day."
            raise InputError(f"the window {new.name!r} has no length", where=f"windows[{n}].length_sec", hint=hint)
        place = new.model or "", new.name
        if place in after:
            raise InputError(f"the window {new.name!r} is named twice", where=f"windows[{n}].name")
        old = before.get(place, policy.Window(new.name, new.model or ""))
        kept = old.used if old.unit == new.unit else old.utilization * new.capacity
        per_claim = old.per_claim if old.unit == new.unit else 0.0
        after[place] = old._replace(
            length_sec=length, unit=new.unit, capacity=new.capacity, used=kept, per_claim=per_claim
        )
    await windows.put(work, name, before, list(after.values()))


@transaction(Accounts.remove)
async def remove_account(tx: Tx, engine: Engine, caller: Caller, workspace: str, provider: str, account: str) -> bool:
    name, work = AccountName(workspace, provider, account), UnitOfWork(tx, engine, caller)
    before = (await windows.lock(tx, [name]))[name]
    if not before:
        return False
    await windows.put(work, name, before, [])
    work.emit_for(workspace, "account_removed", data={"provider": provider, "account": account})
    await work.save_events()
    return True


@transaction(Accounts.renew)
async def renew_account(tx: Tx, engine: Engine, caller: Caller, workspace: str, provider: str, account: str) -> bool:
    return await lift_cooldown(tx, engine, caller, workspace, Key(provider, account).text)


@implements(Accounts.report)
async def report(
    call: Call,
    token: str | Token,
    *,
    headers: Mapping[str, str] | None = None,
    windows: Sequence[WindowState | Mapping[str, Any]] = (),
) -> Outcome:
    given = [check.read(each, WindowState, f"windows[{n}]") for n, each in enumerate(windows)]
    for n, each in enumerate(given):
        check.name(each.window, f"windows[{n}].window")
    return (await call.run(_report, await call.token(token), headers or {}, given)).unwrap()


async def _report(
    tx: Tx, engine: Engine, caller: Caller, token: Token, headers: Mapping[str, str], given: Sequence[WindowState]
) -> Outcome:
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row):
        return Outcome(ids.show_task(token.id), error=error)
    assert row is not None
    work = UnitOfWork(tx, engine, caller)
    known = await windows.report_for_claim(work, token, row, [*quota_headers.read(headers, tx.now), *given])
    await work.save_events()
    return Outcome(ids.show_task(token.id), row["status"], data={"account_known": known})
