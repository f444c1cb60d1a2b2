"""The features that take part in every unit of work, in the order of their locks."""

from __future__ import annotations

from shiftwork.accounts.windows import AccountWindows
from shiftwork.budgets.booking import CostChanges
from shiftwork.engine.unit_of_work import Participant
from shiftwork.fairness.serial_keys import Serials
from shiftwork.limits.breakers import Breakers
from shiftwork.limits.cooldowns import Cooldowns
from shiftwork.limits.rate_limits import Limits
from shiftwork.waits.withdrawal import Withdrawals

PARTICIPANTS: tuple[type[Participant], ...] = (
    Withdrawals,
    CostChanges,
    Serials,
    Breakers,
    Cooldowns,
    Limits,
    AccountWindows,
)
