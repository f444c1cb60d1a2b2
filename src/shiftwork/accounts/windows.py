"""Windows in the store: updated by claims, attempts and providers' reports, with gates for exhausted ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shiftwork.accounts import policy
from shiftwork.accounts.policy import Window
from shiftwork.engine.unit_of_work import Participant, UnitOfWork
from shiftwork.limits import gates
from shiftwork.model.errors import ShiftworkError
from shiftwork.model.keys import Key
from shiftwork.model.outcome import Token
from shiftwork.providers.limit_signal import WindowState

if TYPE_CHECKING:
    from shiftwork.store.store import Row, Tx

GATE = "account"
OF_MODELS = ("opus", "sonnet", "haiku", "fable")
"""A window whose name ends in one of these applies only to that model."""


class AccountName(NamedTuple):
    """An account of a workspace."""

    workspace: str
    provider: str
    account: str

    def key(self, model: str = "") -> Key:
        return Key(self.provider, self.account, model or None)


Windows = dict[tuple[str, str], Window]
"""By model and name."""


class AccountWindows(Participant):
    """Counts the usage of the attempts in one unit of work, and records what providers report about their windows."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._used: list[tuple[Token, str, str, str, int, float]] = []
        self._accounts: dict[Token, AccountName] = {}
        self._states: dict[AccountName, list[tuple[WindowState, bool]]] = defaultdict(list)

    def use(self, token: Token, row: Row, model: str, tokens: int, usd: float) -> None:
        """Count an attempt's usage with a model."""
        self._used.append((token, row["workspace"], row["agent_id"], model, tokens, usd))

    def report(self, name: AccountName, states: Iterable[WindowState], *, of_model: bool = False) -> None:
        """Apply a provider's report about windows of the account, or of a model on it."""
        self._states[name] += [(state, of_model) for state in states]

    async def before_rows(self) -> None:
        if self._used:
            self._accounts = await accounts_of(self.work.tx, [each[:3] for each in self._used])

    async def save(self) -> None:
        names = {*self._accounts.values(), *self._states}
        if not names:
            return
        before = await lock(self.work.tx, names)
        after = {name: dict(found) for name, found in before.items()}
        for token, _, _, model, tokens, usd in self._used:
            if token in self._accounts:
                _count(after[self._accounts[token]], model, tokens, usd, self.work.now)
        for name, states in self._states.items():
            for state, of_model in states:
                _report(after[name], [state], self.work.now, of_model=of_model)
        await _save(self.work, before, after)


def _count(windows: Windows, model: str, tokens: int, usd: float, now: float) -> None:
    for place, window in windows.items():
        if window.model in {"", model}:
            windows[place] = policy.count(window, now, tokens=tokens, usd=usd)


def _report(windows: Windows, states: Iterable[WindowState], now: float, *, of_model: bool = False) -> None:
    for state in states:
        model = (state.model or "") if of_model or state.window.endswith(OF_MODELS) else ""
        new = Window(state.window, model, policy.length_of(state.window))
        windows[model, state.window] = policy.report(windows.get((model, state.window), new), state, now)


async def accounts_of(tx: Tx, claims: Iterable[tuple[Token, str, str]]) -> dict[Token, AccountName]:
    """The accounts of these claims that have windows. A claim comes with its workspace and agent."""
    items = sorted({(*token, workspace, agent) for token, workspace, agent in claims})
    rows = await tx.all("accounts_of_claims", items=items)
    return {
        Token(row["id"], row["fence"]): AccountName(row["workspace"], row["provider"], row["account"]) for row in rows
    }


async def lock(tx: Tx, names: Collection[AccountName]) -> dict[AccountName, Windows]:
    """Lock the windows of accounts, by model and name. Locked last, so that a waiting transaction blocks no other."""
    found: dict[AccountName, Windows] = {name: {} for name in names}
    for row in await tx.all("lock_windows", items=sorted(names)):
        name = AccountName(row["workspace"], row["provider"], row["account"])
        found[name][row["model"], row["name"]] = load(row)
    return found


def load(row: Row) -> Window:
    return Window(**{name: row[name] for name in Window._fields})


async def claim(work: UnitOfWork, counts: Mapping[AccountName, int]) -> None:
    """Count these claims as users of each account."""
    before = await lock(work.tx, counts)
    after = {
        name: {each: policy.count(window, work.now, claims=counts[name]) for each, window in found.items()}
        for name, found in before.items()
    }
    await _save(work, before, after)


async def clear(work: UnitOfWork, workspace: str, key: Key) -> None:
    """Reset exhausted windows when a person reopens the account, or a model on it."""
    if key.provider is None or key.account is None:
        return
    name = AccountName(workspace, key.provider, key.account)
    before = await lock(work.tx, [name])
    after = {
        place: window._replace(used=0.0) if window.is_used_up and window.model == (key.model or "") else window
        for place, window in before[name].items()
    }
    await _save(work, before, {name: after})


async def put(
    work: UnitOfWork, name: AccountName, before: Mapping[tuple[str, str], Window], after: Sequence[Window]
) -> None:
    """Replace the windows of the account."""
    await work.tx.run("remove_windows", **name._asdict())
    gone = [(name.workspace, name.key(window.model).text, GATE) for window in before.values()]
    await _open(work, name.workspace, gone)
    await _save(work, {name: {}}, {name: {(window.model, window.name): window for window in after}})


async def _save(
    work: UnitOfWork,
    before: Mapping[AccountName, Mapping[tuple[str, str], Window]],
    after: Mapping[AccountName, Mapping[tuple[str, str], Window]],
) -> None:
    """Write changes, close the gates of exhausted windows, and open the others."""
    items, shut, opened = [], [], []
    for name, windows in sorted(after.items()):
        for place, window in sorted(windows.items()):
            if (old := before[name].get(place)) == window:
                continue
            items.append((*name, *place, *(window[2:])))
            was = old is not None and old.is_used_up
            gate = (name.workspace, name.key(window.model).text, GATE)
            if window.is_used_up and window.resets_at is not None:
                shut.append((*gate, "", f"the {window.name} window is used up", window.resets_at))
                if not was:
                    data = {"provider": name.provider, "account": name.account, "window": window.name}
                    data |= {"model": window.model} if window.model else {}
                    work.emit_for(name.workspace, "account_used_up", data={**data, "resets_at": window.resets_at})
            elif was:
                opened.append(gate)
    if items:
        await work.tx.run("save_windows", items=items, now=work.now)
    if opened:
        await _open(work, opened[0][0], opened)
    if shut:
        await work.tx.run("close_until", items=_longest(shut), now=work.now, actor=work.caller.actor)


def _longest(shut: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Keep the window that resets last, per account."""
    return sorted({gate[:4]: gate for gate in sorted(shut, key=lambda gate: float(gate[5]))}.values())


async def _open(work: UnitOfWork, workspace: str, names: Sequence[tuple[str, str, str]]) -> None:
    opened = await work.tx.all("open_gates", items=sorted(set(names))) if names else []
    await gates.wake(work.tx, workspace, [gates.key_of(row["kind"], row["scope"]) for row in opened])


def states_in(data: Mapping[str, Any] | None, place: str) -> list[WindowState]:
    """The window states in the data of a message; unreadable ones are ignored."""
    if data is None or place not in data:
        return []
    try:
        return [msgspec.convert(data[place], WindowState)]
    except (msgspec.ValidationError, ShiftworkError):
        return []


async def report_for_claim(work: UnitOfWork, token: Token, row: Row, states: Sequence[WindowState]) -> bool:
    """Record a provider's report about the account of a claim; False if the account is unknown."""
    agent = await work.tx.one("read_agent", workspace=row["workspace"], id=row["agent_id"])
    handed = await work.tx.one("handed_with_claims", items=[(token.id,)])
    reported: dict[AccountName, list[WindowState]] = defaultdict(list)
    for state in states:
        provider = state.provider or (agent["provider"] if agent else None)
        account = state.account or (handed and handed["account"]) or (agent["account"] if agent else None)
        if provider is not None and account is not None:
            reported[AccountName(row["workspace"], provider, account)].append(state)
    before = await lock(work.tx, reported) if reported else {}
    after = {name: dict(found) for name, found in before.items()}
    for name, known in reported.items():
        _report(after[name], known, work.now)
    await _save(work, before, after)
    return bool(reported)
