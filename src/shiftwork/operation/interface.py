"""The interface of a queue, in this process (`Queue`) or on a server (`Client`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shiftwork.engine.api import Everyday
from shiftwork.engine.claims_api import Spawning, WorkerVerbs
from shiftwork.model.outcome import Token
from shiftwork.model.task import Failures, NewTask
from shiftwork.operation.handle import TaskHandle

if TYPE_CHECKING:
    from shiftwork.access.api import Tokens
    from shiftwork.accounts.api import Accounts
    from shiftwork.agents.api import Agents, Runtimes
    from shiftwork.artifacts.api import Artifacts
    from shiftwork.batches.api import ProviderBatches
    from shiftwork.budgets.api import Budgets
    from shiftwork.bulk.api import Bulk
    from shiftwork.control.api import Control
    from shiftwork.dags.api import Dags
    from shiftwork.databases.api import Workspaces
    from shiftwork.dead_letters.api import DeadLetters
    from shiftwork.limits.api import Breakers, Cooldowns, Limits, Quotas
    from shiftwork.notifications.api import Deliveries, Sinks
    from shiftwork.observe.api import Alerts, MetricsApi
    from shiftwork.operation.joined import AllClaims, AllTasks, Batches
    from shiftwork.settings.api import Settings
    from shiftwork.snapshots.api import Snapshots
    from shiftwork.steps.api import Effects, Steps
    from shiftwork.task_types.api import Types
    from shiftwork.triggers.api import Triggers
    from shiftwork.waits.api import Approvals, Waits

# Each namespace is imported when it is first used: most programs use few of them.


class AnyQueue(Everyday, WorkerVerbs):
    """A queue, local or remote: everyday operations as methods, the rest in one namespace per feature."""

    @property
    def url(self) -> str:
        """The address of the queue: a database, or a server."""
        raise NotImplementedError

    @property
    def workspace(self) -> str:
        return self._executor.workspace

    def now(self) -> float:
        """Return the queue's time: the same for every process of the fleet."""
        raise NotImplementedError

    def in_workspace(self, name: str) -> Self:
        """Return the same queue in another workspace. A token has its own and opens no other."""
        raise NotImplementedError

    def as_caller(self, actor: str, request_id: str | None = None) -> Self:
        """Return the same queue for another caller: `human:ada`, `agent:coder-1`, `cron:nightly`.

        Over HTTP a caller with a token goes by the token's name.
        """
        raise NotImplementedError

    async def spawn(
        self,
        token: str | Token,
        tasks: Sequence[NewTask | Mapping[str, Any]],
        *,
        wait: bool = False,
        failures: Failures = "wait",
        name: str | None = None,
    ) -> list[TaskHandle[Any]]:
        """Add subtasks to the task's own DAG. With `wait` its slot is released until they are done.

        They are done when they are completed; with `failures="return"`, once they have ended, whatever the outcome. The
        task's `failed_dependencies` then say which ended without success, and why.

        With a `name` this happens once in the life of the task, like a step: called again, also by a later attempt, it
        spawns nothing and answers with the same subtasks; if they are all done, `wait` releases nothing.
        """
        made = await Spawning(self._executor).spawn(token, tasks, wait=wait, failures=failures, name=name)
        return [TaskHandle.of(self, each) for each in made]

    async def close(self) -> None:
        """Finish running calls, then close the store or the connections."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())

    @cached_property
    def batch(self) -> Batches:
        from shiftwork.operation.joined import Batches

        return Batches(self._executor)

    @cached_property
    def approvals(self) -> Approvals:
        from shiftwork.waits.api import Approvals

        return Approvals(self._executor)

    @cached_property
    def artifacts(self) -> Artifacts:
        from shiftwork.artifacts.api import Artifacts

        return Artifacts(self._executor)

    @cached_property
    def claims(self) -> AllClaims:
        from shiftwork.operation.joined import AllClaims

        return AllClaims(self._executor)

    @cached_property
    def accounts(self) -> Accounts:
        from shiftwork.accounts.api import Accounts

        return Accounts(self._executor)

    @cached_property
    def agents(self) -> Agents:
        from shiftwork.agents.api import Agents

        return Agents(self._executor)

    @cached_property
    def runtimes(self) -> Runtimes:
        from shiftwork.agents.api import Runtimes

        return Runtimes(self._executor)

    @cached_property
    def breakers(self) -> Breakers:
        from shiftwork.limits.api import Breakers

        return Breakers(self._executor)

    @cached_property
    def batches(self) -> ProviderBatches:
        from shiftwork.batches.api import ProviderBatches

        return ProviderBatches(self._executor)

    @cached_property
    def budgets(self) -> Budgets:
        from shiftwork.budgets.api import Budgets

        return Budgets(self._executor)

    @cached_property
    def bulk(self) -> Bulk:
        from shiftwork.bulk.api import Bulk

        return Bulk(self._executor)

    @cached_property
    def control(self) -> Control:
        from shiftwork.control.api import Control

        return Control(self._executor)

    @cached_property
    def cooldowns(self) -> Cooldowns:
        from shiftwork.limits.api import Cooldowns

        return Cooldowns(self._executor)

    @cached_property
    def dags(self) -> Dags:
        from shiftwork.dags.api import Dags

        return Dags(self._executor)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        from shiftwork.dead_letters.api import DeadLetters

        return DeadLetters(self._executor)

    @cached_property
    def effects(self) -> Effects:
        from shiftwork.steps.api import Effects

        return Effects(self._executor)

    @cached_property
    def limits(self) -> Limits:
        from shiftwork.limits.api import Limits

        return Limits(self._executor)

    @cached_property
    def metrics(self) -> MetricsApi:
        from shiftwork.observe.api import MetricsApi

        return MetricsApi(self._executor)

    @cached_property
    def alerts(self) -> Alerts:
        from shiftwork.observe.api import Alerts

        return Alerts(self._executor)

    @cached_property
    def types(self) -> Types:
        from shiftwork.task_types.api import Types

        return Types(self._executor)

    @cached_property
    def triggers(self) -> Triggers:
        from shiftwork.triggers.api import Triggers

        return Triggers(self._executor)

    @cached_property
    def tasks(self) -> AllTasks:
        from shiftwork.operation.joined import AllTasks

        return AllTasks(self._executor)

    @cached_property
    def sinks(self) -> Sinks:
        from shiftwork.notifications.api import Sinks

        return Sinks(self._executor)

    @cached_property
    def deliveries(self) -> Deliveries:
        from shiftwork.notifications.api import Deliveries

        return Deliveries(self._executor)

    @cached_property
    def quotas(self) -> Quotas:
        from shiftwork.limits.api import Quotas

        return Quotas(self._executor)

    @cached_property
    def settings(self) -> Settings:
        from shiftwork.settings.api import Settings

        return Settings(self._executor)

    @cached_property
    def snapshots(self) -> Snapshots:
        from shiftwork.snapshots.api import Snapshots

        return Snapshots(self._executor)

    @cached_property
    def steps(self) -> Steps:
        from shiftwork.steps.api import Steps

        return Steps(self._executor)

    @cached_property
    def tokens(self) -> Tokens:
        from shiftwork.access.api import Tokens

        return Tokens(self._executor)

    @cached_property
    def waits(self) -> Waits:
        from shiftwork.waits.api import Waits

        return Waits(self._executor)

    @cached_property
    def workspaces(self) -> Workspaces:
        from shiftwork.databases.api import Workspaces

        return Workspaces(self._executor)
