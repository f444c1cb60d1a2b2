"""Accounts at providers, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.accounts.model import Account, NewWindow
from shiftwork.model.errors import FenceRequired, LeaseLost, NotFound, NotYourClaim, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Name
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts, ClaimToken
from shiftwork.providers.limit_signal import WindowState

HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)
MAX_WINDOWS = 50


class Accounts(Namespace, name="accounts", group="Protection"):
    """Accounts at providers and the windows of their quotas."""

    @operation("GET /api/accounts", "read", envelope="accounts")
    async def list(self) -> list[Account]:
        """Return the accounts that agents use, or whose windows are known, with how far each window is used."""

    @operation("PUT /api/accounts/{provider}/{account}", "operate")
    async def set(
        self,
        provider: Name,
        account: Name,
        *,
        windows: Annotated[
            Sequence[NewWindow | Mapping[str, Any]], Accepts(list[NewWindow]), Meta(max_length=MAX_WINDOWS)
        ],
    ) -> Account:
        """Set the windows of an account whose sizes are known; attempts' usage is counted in them.

        The use of an existing window is kept, a window not named is removed. Windows that the provider itself reports
        need not be set.
        """

    @operation("DELETE /api/accounts/{provider}/{account}", "operate", envelope="removed")
    async def remove(self, provider: Name, account: Name) -> bool:
        """Remove the windows of an account; False if it has none."""

    @operation("POST /api/accounts/{provider}/{account}/renew", "operate", envelope="renewed")
    async def renew(self, provider: Name, account: Name) -> bool:
        """Report that an account's credentials were renewed, so that it is used again; False if it was not held
        back.
        """

    @operation("POST /api/tasks/{task_id}/quota", "work", key="never", errors=HOLDING, group="Working")
    async def report(
        self,
        token: ClaimToken,
        *,
        headers: Mapping[str, str] | None = None,
        windows: Annotated[
            Sequence[WindowState | Mapping[str, Any]], Accepts(list[WindowState]), Meta(max_length=MAX_WINDOWS)
        ] = (),
    ) -> Outcome:
        """Report how far the windows of the account are used: the headers of a provider's answer, or the windows.

        The account is the one of the claim, or the one the agent registered with.
        """
