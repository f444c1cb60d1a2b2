"""Chooses the account that an agent uses for a claim: the one with most left before its nearest reset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shiftwork.accounts import policy, windows
from shiftwork.accounts.policy import Window
from shiftwork.accounts.windows import AccountName
from shiftwork.limits.gates import Reason
from shiftwork.limits.model import Closed

if TYPE_CHECKING:
    from shiftwork.engine.unit_of_work import UnitOfWork
    from shiftwork.store.store import Row, Tx

WINDOWED = "windowed"
"""The kind of the rows with which a claim finds the accounts that have windows."""

LOOK_AGAIN_SEC = 15.0
"""How often a claim that waits for running work to free room checks again."""


class AccountUse(NamedTuple):
    """An agent on one of its accounts, and how much more work that account can take."""

    agent: Row
    """The agent, with the account of this claim."""
    name: AccountName | None = None
    """Set if the account has windows."""
    windows: Sequence[Window] = ()
    running: int = 0
    several: bool = False
    fleet: AccountUses | None = None
    """The accounts of all agents; set if this one has windows."""

    def room(self, now: float) -> float:
        return policy.room(self.windows, now, self.running)

    def has_spare(self, now: float) -> bool:
        """Whether work that may only use quota that would lapse can use it."""
        return policy.would_lapse(self.windows, now, self.running)

    def clearly_better(self, other: Row, workspace: str, now: float, *, spare_only: bool) -> list[AccountUse]:
        """The accounts of another agent that have room, and much more left before their nearest reset than this one."""
        if self.fleet is None:
            return []
        return [
            use
            for use in self.fleet.of(other, workspace)
            if use.name is not None
            and policy.has_clearly_more(use.windows, self.windows, now)
            and use.room(now) >= 1
            and (use.has_spare(now) or not spare_only)
        ]

    def resets_at(self) -> float | None:
        """The latest reset, since waiting work needs room in all windows."""
        return max((window.resets_at for window in self.windows if window.resets_at is not None), default=None)

    def closed(self) -> Closed:
        assert self.name is not None
        return Closed("account", self.name.key().text, self.resets_at())


def accounts_of(agent: Row) -> list[str | None]:
    """The accounts an agent can use, None for one it has not named."""
    if agent["accounts"] is None:
        return [agent["account"]]
    names: list[str | None] = msgspec.json.decode(agent["accounts"])
    return names


def on_each(agent: Row) -> list[Row]:
    """One copy of the agent's row per account."""
    return [agent] if agent["accounts"] is None else [{**agent, "account": name} for name in accounts_of(agent)]


class AccountUses:
    """The windows of a workspace's accounts, and what runs on them."""

    def __init__(self, rows: Sequence[Row], running: Sequence[Row]) -> None:
        self._windows: dict[tuple[str, str], list[Window]] = {}
        for row in rows:
            found = self._windows.setdefault((row["provider"], row["account"]), [])
            if not row["model"]:  # a window of one model closes only that model
                found.append(windows.load(row))
        self.running: Mapping[tuple[str, str], int] = {
            (row["provider"], row["account"]): int(row["total"]) for row in running
        }

    def of(self, agent: Row, workspace: str) -> list[AccountUse]:
        """The agent on each of its accounts."""
        uses = []
        for view in on_each(agent):
            place = view["provider"], view["account"]
            found = self._windows.get(place)
            name = None if found is None else AccountName(workspace, *place)
            several = agent["accounts"] is not None
            fleet = None if name is None else self
            uses.append(AccountUse(view, name, found or (), self.running.get(place, 0), several, fleet))
        return uses

    def in_order(self, agent: Row, workspace: str, now: float) -> list[AccountUse]:
        """The same, in the order in which a claim should use them."""

        def order(use: AccountUse) -> tuple[float, float, int, str]:
            urgency = policy.urgency(use.windows, now)
            return -urgency.lasting, -urgency.short, use.running, use.agent["account"] or ""

        return sorted(self.of(agent, workspace), key=order)


async def load(tx: Tx, workspace: str) -> AccountUses:
    rows = await tx.all("list_windows", workspace=workspace)
    return AccountUses(rows, await tx.all("running_on_accounts", workspace=workspace))


def is_plain(agent: Row, found: Iterable[Row]) -> bool:
    """Whether an agent has at most one account, and no windows on it."""
    place = agent["provider"], agent["account"]
    windowed = any(row["kind"] == WINDOWED and (row["scope"], row["agent_id"]) == place for row in found)
    return agent["accounts"] is None and not windowed


async def uses_of(tx: Tx, workspace: str, agent: Row, found: Iterable[Row]) -> list[AccountUse]:
    """The accounts of an agent, in the order in which a claim should use them."""
    if is_plain(agent, found):
        return [AccountUse(agent)]
    return (await load(tx, workspace)).in_order(agent, workspace, tx.now)


async def record(work: UnitOfWork, used: Sequence[tuple[AccountUse, Sequence[Row]]]) -> None:
    """Record the tasks claimed on these accounts. Called at the end of a claim, since windows are locked last."""
    handed = [(row["id"], row["fence"] + 1, use.agent["account"]) for use, rows in used if use.several for row in rows]
    if handed:
        await work.tx.run("save_claim_accounts", items=sorted(handed))
    claims: Counter[AccountName] = Counter()
    for use, rows in used:
        if use.name is not None and rows:
            claims[use.name] += len(rows)
    if claims:
        await windows.claim(work, claims)
        await work.save_events()


def most(use: AccountUse, wanted: int, now: float) -> int:
    """How many of the wanted tasks the account has room for."""
    room = use.room(now)
    return wanted if math.isinf(room) else min(wanted, int(room))


def reasons(uses: Sequence[AccountUse], now: float, *, spare_only: bool) -> list[Reason]:
    """Why none of these accounts can take such a task now; empty if one can."""
    found: dict[str, Reason] = {}
    for use in uses:
        if use.name is None:
            return []
        key, at = use.name.key().text, use.resets_at()
        if any(policy.current(window, now).is_used_up for window in use.windows):
            found[key] = Reason("account", f"{key} has a window that is used up", "the window resets", at)
        elif use.room(now) < 1:
            what = f"running work on {key} is expected to use up the rest of its windows"
            found[key] = Reason("account", what, "a task that uses it ends, or the window resets", at)
        elif spare_only and not use.has_spare(now):
            what = f"it only uses what would lapse, and {key} is not behind the even pace of its windows"
            found[key] = Reason("use_before_reset", what, "time passes without other work on the account", at)
        else:
            return []
    return list(found.values())
