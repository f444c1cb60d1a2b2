"""What operators do: cancel, change, review, pause, purge, and set the queue up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import msgspec

from shiftwork.client.handle import Handle, batches, given, new_key, outcome, part
from shiftwork.core.resolve import InForce
from shiftwork.policy.quota import Quota
from shiftwork.queue import check
from shiftwork.queue.agents import Agent
from shiftwork.queue.change import Changes
from shiftwork.queue.control import Purge
from shiftwork.queue.dags import DagChanges, DagSummary
from shiftwork.queue.fence import Outcome
from shiftwork.queue.observation.alerts import Alert
from shiftwork.queue.protection.quotas import QuotaInForce
from shiftwork.queue.snapshots import Snapshot
from shiftwork.queue.tokens import NewToken, TokenInfo, check_terms
from shiftwork.wire.shapes import (
    OutcomeReply,
    Outcomes,
    Purged,
    QuotaList,
    Resumed,
    SettingsList,
    SnapshotList,
    TokenList,
)


class Operating(Handle):
    """Verbs on tasks and on the queue that need no claim."""

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def cancel(self, task_id: str, reason: str = "cancelled", *, version: int | None = None) -> Outcome:
        path = f"/api/tasks/{part(task_id, 'task_id')}/cancel"
        return outcome(await self._once(path, OutcomeReply, given(reason=reason, version=version)))

    async def cancel_many(
        self, task_ids: Sequence[str], reason: str = "cancelled", *, version: int | None = None
    ) -> list[Outcome]:
        done: list[Outcome] = []
        for batch in batches(task_ids):
            body = given(task_ids=batch, reason=reason, version=version)
            done += map(outcome, (await self._once("/api/batch/cancel", Outcomes, body)).outcomes)
        return done

    async def cancel_dag(self, dag_id: str, reason: str = "cancelled") -> list[Outcome]:
        path = f"/api/dags/{part(dag_id, 'dag_id')}/cancel"
        return [outcome(each) for each in (await self._once(path, Outcomes, {"reason": reason})).outcomes]

    async def rerun(self, task_id: str) -> Outcome:
        return outcome(await self._once(f"/api/tasks/{part(task_id, 'task_id')}/rerun", OutcomeReply))

    async def rerun_issue(self, issue_id: str, task_id: str | None = None) -> Outcome:
        path = f"/api/issues/{part(issue_id, 'issue_id')}/rerun"
        return outcome(await self._once(path, OutcomeReply, given(task_id=task_id)))

    async def update(
        self,
        task_id: str,
        changes: Changes | Mapping[str, Any],
        *,
        note: str | None = None,
        version: int | None = None,
    ) -> Outcome:
        fields = check.plain(check.read(changes, Changes, "changes"), "changes")
        path = f"/api/tasks/{part(task_id, 'task_id')}"
        only_at = None if version is None else {"If-Match": str(version)}
        body = {**fields, **given(note=note)}
        return outcome(await self._send("PATCH", path, OutcomeReply, body, key=new_key(), headers=only_at))

    async def update_dag(self, dag_id: str, changes: DagChanges | Mapping[str, Any]) -> DagSummary:
        fields = check.plain(check.read(changes, DagChanges, "changes"), "changes")
        return await self._send("PATCH", f"/api/dags/{part(dag_id, 'dag_id')}", DagSummary, fields, key=new_key())

    # -- dead letters ----------------------------------------------------------------------------------------------

    async def review(
        self,
        task_id: str,
        decision: str,
        *,
        note: str | None = None,
        at: float | None = None,
        change: Mapping[str, Any] | None = None,
        chain: bool = False,
        version: int | None = None,
    ) -> Outcome:
        path = f"/api/dead-letters/{part(task_id, 'task_id')}/review"
        body = given(decision=decision, note=note, at=at, change=change, chain=chain, version=version)
        return outcome(await self._once(path, OutcomeReply, body))

    async def redrive(
        self, signature: str, decision: str = "retry", *, note: str | None = None, at: float | None = None
    ) -> list[Outcome]:
        body = given(signature=signature, decision=decision, note=note, at=at)
        return [outcome(each) for each in (await self._once("/api/dead-letters/redrive", Outcomes, body)).outcomes]

    async def acknowledge_alert(self, seq: int) -> Alert:
        return await self._once(f"/api/alerts/{check.count(seq, 'seq', 2**62)}/acknowledge", Alert)

    # -- the queue -------------------------------------------------------------------------------------------------

    async def pause(self, type: str | None = None, *, reason: str | None = None) -> None:  # noqa: A002  # the task's word
        await self._once("/api/queue/pause", NoneType, given(type=type, reason=reason))

    async def resume(self, type: str | None = None) -> bool:  # noqa: A002  # the task's word
        return (await self._once("/api/queue/resume", Resumed, given(type=type))).resumed

    async def purge(self, /, purge: Purge | Mapping[str, Any] | None = None, **fields: Any) -> int:
        checked = check.read(fields if purge is None else purge, Purge, "purge")
        return (await self._once("/api/queue/purge", Purged, checked)).purged

    async def rebalance(self) -> list[Outcome]:
        return [outcome(each) for each in (await self._once("/api/queue/rebalance", Outcomes)).outcomes]

    async def set_agent_status(self, agent_id: str, status: str) -> None:
        await self._change_agent(agent_id, {"status": status})

    async def set_agent_budget(self, agent_id: str, remaining_usd: float | None) -> None:
        await self._change_agent(agent_id, {"budget_remaining_usd": remaining_usd})

    async def _change_agent(self, agent_id: str, change: dict[str, Any]) -> None:
        await self._send("PATCH", f"/api/agents/{part(agent_id, 'agent_id')}", Agent, change, key=new_key())

    # -- settings --------------------------------------------------------------------------------------------------

    async def settings(self, type: str | None = None) -> list[InForce]:  # noqa: A002  # the task's word
        return _in_force(await self._get("/api/settings", SettingsList, type=type))

    async def set_setting(self, key: str, value: Any, type: str | None = None) -> list[InForce]:  # noqa: A002  # the task's word
        return await self.change_settings({key: value}, type=type)

    async def change_settings(
        self,
        values: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        *,
        type: str | None = None,  # noqa: A002  # the task's word
        profile: str | None = None,
    ) -> list[InForce]:
        body = given(set=values, unset=unset, profile=profile)
        path, query = "/api/settings", {"type": type}
        return _in_force(await self._send("PATCH", path, SettingsList, body, key=new_key(), query=query))

    async def unset_setting(self, key: str, type: str | None = None) -> list[InForce]:  # noqa: A002  # the task's word
        return await self.change_settings(unset=[key], type=type)

    async def profile(self) -> str:
        return (await self._get("/api/settings", SettingsList)).profile

    async def use_profile(self, profile: str) -> None:
        await self.change_settings(profile=profile)

    # -- access ----------------------------------------------------------------------------------------------------

    async def create_token(self, name: str, scopes: Sequence[str], *, expires_at: float | None = None) -> NewToken:
        terms = check_terms(name, scopes, expires_at)
        return await self._once("/api/tokens", NewToken, given(**terms._asdict()))

    async def tokens(self) -> list[TokenInfo]:
        return (await self._get("/api/tokens", TokenList)).tokens

    async def revoke_token(self, token_id: str) -> TokenInfo:
        return await self._send("DELETE", f"/api/tokens/{part(token_id, 'token')}", TokenInfo, key=new_key())

    # -- quotas ----------------------------------------------------------------------------------------------------

    async def set_quota(
        self, /, workspace: str, quota: Quota | Mapping[str, Any] | None = None, **fields: Any
    ) -> QuotaInForce:
        checked = check.read(fields if quota is None else quota, Quota, "quota")
        path = f"/api/quotas/{part(workspace, 'workspace')}"
        return await self._send("PUT", path, QuotaInForce, msgspec.to_builtins(checked), key=new_key())

    async def quota(self) -> QuotaInForce:
        return await self._get("/api/quota", QuotaInForce)

    async def quotas(self) -> list[QuotaInForce]:
        return (await self._get("/api/quotas", QuotaList)).quotas

    # -- snapshots -------------------------------------------------------------------------------------------------

    async def take_snapshot(self) -> Snapshot:
        return await self._once("/api/snapshots", Snapshot)

    async def snapshots(self) -> list[Snapshot]:
        return (await self._get("/api/snapshots", SnapshotList)).snapshots


def _in_force(told: SettingsList) -> list[InForce]:
    return [InForce(each.key, each.value, each.source, each.meaning) for each in told.settings]
