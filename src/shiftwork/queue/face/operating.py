"""What operators do: cancel, change, review, pause, purge, and set the queue up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import ConflictError, InputError, NotFound
from shiftwork.core.resolve import InForce
from shiftwork.core.states import STORED
from shiftwork.core.task import Dollars
from shiftwork.policy.quota import Quota
from shiftwork.queue import agents, change, check, control, dags, review, snapshots, tokens
from shiftwork.queue.change import Changes
from shiftwork.queue.control import WHOLE, Purge
from shiftwork.queue.dags import DagChanges, DagSummary
from shiftwork.queue.face.handle import Handle, one
from shiftwork.queue.fence import Outcome
from shiftwork.queue.money import budgets
from shiftwork.queue.observation import alerts
from shiftwork.queue.observation.alerts import Alert
from shiftwork.queue.protection import quotas
from shiftwork.queue.protection.quotas import QuotaInForce
from shiftwork.queue.review import Verdict
from shiftwork.queue.snapshots import Snapshot
from shiftwork.queue.tokens import NewToken, TokenInfo

REDRIVE_BATCH = 500


class Operating(Handle):
    """Verbs on tasks and on the queue that need no claim."""

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def cancel(self, task_id: str, reason: str = "cancelled", *, version: int | None = None) -> Outcome:
        """Cancel a task that has not ended, and what depends on it, as its settings say."""
        return one(await self.cancel_many([task_id], reason, version=version))

    async def cancel_many(
        self, task_ids: Sequence[str], reason: str = "cancelled", *, version: int | None = None
    ) -> list[Outcome]:
        """Each has an outcome of its own."""
        found = await self._find_many(task_ids)
        known = [uuid for uuid in found if isinstance(uuid, str)]
        told = iter(await self._run(change.cancel, known, check.text(reason, "reason"), version) if known else ())
        return [
            next(told) if isinstance(uuid, str) else Outcome(ids.shown(task_id), error=uuid)
            for task_id, uuid in zip(task_ids, found, strict=True)
        ]

    async def cancel_dag(self, dag_id: str, reason: str = "cancelled") -> list[Outcome]:
        """Cancel everything of a DAG that has not ended."""
        uuid = self._find_dag(dag_id)
        return await self._run(change.cancel_dag, self.workspace, uuid, check.text(reason, "reason"))

    async def rerun(self, task_id: str) -> Outcome:
        """The same work as a new task with a fresh session."""
        return await self._run(change.rerun, await self._find(task_id))

    async def rerun_issue(self, issue_id: str, task_id: str | None = None) -> Outcome:
        """Rerun the newest task of an issue, or the one named."""
        if task_id is not None:
            (uuid,) = await self._find_many([task_id])
            known = [(uuid,)] if isinstance(uuid, str) else []
            named = await self._read(lambda tx: tx.one("read_tasks", items=known))
            if named is None or named["issue_id"] != issue_id:
                raise NotFound(f"issue {issue_id!r} has no task {task_id!r}", where="task_id")
            return await self.rerun(task_id)
        row = await self._read(lambda tx: tx.one("newest_of_issue", workspace=self.workspace, issue=issue_id))
        if row is None:
            raise NotFound(f"issue {issue_id!r} has no task", where="issue_id")
        return await self._run(change.rerun, row["id"])

    async def update(
        self,
        task_id: str,
        changes: Changes | Mapping[str, Any],
        *,
        note: str | None = None,
        version: int | None = None,
    ) -> Outcome:
        """Change a task that nobody holds; with `version` only if it is still as it was read."""
        checked = check.fit(check.read(changes, Changes, "changes"), "changes")
        return await self._run(change.update, await self._find(task_id), checked, check.text(note, "note"), version)

    async def update_dag(self, dag_id: str, changes: DagChanges | Mapping[str, Any]) -> DagSummary:
        """Change a DAG's title or the most it may cost."""
        checked = check.fit(check.read(changes, DagChanges, "changes"), "changes")
        if checked == DagChanges():
            raise InputError("there is nothing to change", where="changes")
        uuid = self._find_dag(dag_id)
        changed = await self._run(dags.update, self.workspace, uuid, checked)
        more = checked.budget_ceiling_usd is not msgspec.UNSET
        while more:
            _, more = await self._run(budgets.settle, self.workspace, "dag", uuid)
        return changed

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
        """Decide about a dead letter: retry, retry_later, modify_and_retry, cancel, abandon, delete or escalate."""
        verdict = Verdict(decision, check.text(note, "note"), at, dict(change) if change else None, chain, version)
        return one(await self._run(review.review, [await self._find(task_id)], verdict))

    async def redrive(
        self, signature: str, decision: str = "retry", *, note: str | None = None, at: float | None = None
    ) -> list[Outcome]:
        """The same decision for all dead letters that failed alike."""
        verdict = Verdict(decision, check.text(note, "note"), at)
        done: list[Outcome] = []
        while page := await self._run(review.redrive, self.workspace, signature, verdict, REDRIVE_BATCH):
            done += page
            if len(page) < REDRIVE_BATCH:
                break
        return done

    async def acknowledge_alert(self, seq: int) -> Alert:
        """Note that the caller has looked at an alert; the first who did stands."""
        return await self._run(alerts.acknowledge, self.workspace, check.count(seq, "seq", 2**62))

    # -- the queue -------------------------------------------------------------------------------------------------

    async def pause(self, type: str | None = None, *, reason: str | None = None) -> None:  # noqa: A002  # the task's word
        """Hand out no more work, of one type or at all."""
        scope = check.text(type, "type") or WHOLE
        await self._run(control.pause, self.workspace, scope, check.text(reason, "reason"))

    async def resume(self, type: str | None = None) -> bool:  # noqa: A002  # the task's word
        """Hand out work again; False when it was not paused."""
        return await self._run(control.resume, self.workspace, check.text(type, "type") or WHOLE)

    async def purge(self, purge: Purge | Mapping[str, Any] | None = None, **fields: Any) -> int:
        """Remove the tasks that match; how many went. At least one condition must be given."""
        checked = check.read(fields if purge is None else purge, Purge, "purge")
        if checked == Purge():
            raise InputError("a purge needs at least one condition", where="purge")
        unknown = [status for status in checked.status if status not in STORED]
        if unknown:
            raise InputError(f"there is no status {unknown[0]!r}", where="purge.status")
        total, after = 0, None
        while True:
            count, after = await self._run(control.purge_page, self.workspace, checked, after)
            total += count
            if after is None:
                return total

    async def rebalance(self) -> list[Outcome]:
        """Withdraw claims that loaded agents have not started, for idle ones to take."""
        return await self._run(agents.rebalance, self.workspace)

    async def set_agent_status(self, agent_id: str, status: str) -> None:
        """active, draining, offline or failed."""
        await self._run(agents.set_status, self.workspace, check.name(agent_id, "agent_id"), status)

    async def set_agent_budget(self, agent_id: str, remaining_usd: float | None) -> None:
        """What the agent may still spend; None for no limit."""
        if remaining_usd is not None:
            remaining_usd = check.read(remaining_usd, Dollars, "remaining_usd")
        await self._run(agents.set_budget, self.workspace, check.name(agent_id, "agent_id"), remaining_usd)

    # -- settings --------------------------------------------------------------------------------------------------

    async def settings(self, type: str | None = None) -> list[InForce]:  # noqa: A002  # the task's word
        """Every setting in force, and where it comes from."""
        resolver = await self._engine.book.get(self._engine.store, self.workspace)
        return resolver.in_force(type)

    async def set_setting(self, key: str, value: Any, type: str | None = None) -> list[InForce]:  # noqa: A002  # the task's word
        """Change one setting for the workspace or a type; in force at once, recorded as an event."""
        return await self._change_setting(key, value, type, unset=False)

    async def change_settings(
        self,
        values: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        *,
        type: str | None = None,  # noqa: A002  # the task's word
        profile: str | None = None,
    ) -> list[InForce]:
        """Change several settings, and perhaps the profile, all together or none."""
        scope = _scope(type)
        if scope and profile is not None:
            raise InputError("a profile is of the whole workspace, not of a type", where="type")
        try:
            return await self._run(
                control.change_settings, self.workspace, scope, dict(values or {}), list(unset), profile
            )
        finally:
            self._engine.book.forget(self.workspace)

    async def unset_setting(self, key: str, type: str | None = None) -> list[InForce]:  # noqa: A002  # the task's word
        """Let the level above decide again."""
        return await self._change_setting(key, None, type, unset=True)

    async def _change_setting(self, key: str, value: Any, type_: str | None, *, unset: bool) -> list[InForce]:
        try:
            return await self._run(control.change_setting, self.workspace, _scope(type_), key, value, unset=unset)
        finally:
            self._engine.book.forget(self.workspace)

    async def profile(self) -> str:
        """The profile of this workspace."""
        row = await self._read(lambda tx: tx.one("read_workspace", name=self.workspace))
        return str(row["profile"]) if row else self._engine.book.default_profile

    async def use_profile(self, profile: str) -> None:
        """Choose the profile of this workspace."""
        try:
            await self._run(control.use_profile, self.workspace, profile)
        finally:
            self._engine.book.forget(self.workspace)

    # -- access ----------------------------------------------------------------------------------------------------

    async def create_token(self, name: str, scopes: Sequence[str], *, expires_at: float | None = None) -> NewToken:
        """Make a token for this workspace. Its secret stands in this answer and nowhere else."""
        terms = tokens.check_terms(name, scopes, expires_at)
        token_id, secret = tokens.make_secret()
        info = await self._run(tokens.create, self.workspace, token_id, tokens.digest(secret), terms)
        if info.id != token_id:
            raise ConflictError(
                f"this request has made the token {info.id} already, whose secret is not kept",
                token=info.id,
                mend="Revoke that token, and make another under a new key.",
            )
        return NewToken(
            id=info.id,
            name=info.name,
            workspace_id=info.workspace_id,
            scopes=info.scopes,
            secret=secret,
            created_at=info.created_at,
            created_by=info.created_by,
            expires_at=info.expires_at,
        )

    async def tokens(self) -> list[TokenInfo]:
        """The tokens of this workspace, oldest first, also those that open nothing any more."""
        return await self._read(lambda tx: tokens.read_all(tx, self.workspace))

    async def revoke_token(self, token_id: str) -> TokenInfo:
        """Let nobody in with this token any more."""
        return await self._run(tokens.revoke, self.workspace, check.name(token_id, "token"))

    # -- quotas, which the operator of a server sets for each workspace ---------------------------------------------

    async def set_quota(
        self, workspace: str, quota: Quota | Mapping[str, Any] | None = None, **fields: Any
    ) -> QuotaInForce:
        """Set how many tasks and bytes a workspace may store and how much it may submit a minute; None is no limit."""
        checked = check.read(fields if quota is None else quota, Quota, "quota")
        named = check.name(workspace, "workspace")
        try:
            return await self._run(quotas.put, named, checked)
        finally:
            self._engine.quotas.forget(named)

    async def quota(self) -> QuotaInForce:
        """What this workspace may have, and has of it."""
        return await self._read(lambda tx: quotas.read(tx, self.workspace))

    async def quotas(self) -> list[QuotaInForce]:
        """The quotas of all workspaces that have one."""
        return await self._read(quotas.read_all)

    # -- snapshots, which are of the whole queue with all its workspaces -------------------------------------------

    async def take_snapshot(self) -> Snapshot:
        """Write all of the queue, as it stands now, into the folder of its snapshots; at most once a minute."""
        folder = snapshots.folder_of(self._engine)
        name, now = await self._run(snapshots.begin), self._engine.store.now()
        found = await folder.take(self._engine.store.url, name, now)
        await snapshots.prune(self._engine, now)
        return await self._run(snapshots.taken, self.workspace, snapshots.snapshot(found))

    async def snapshots(self) -> list[Snapshot]:
        """The snapshots there are, the newest first."""
        return [snapshots.snapshot(found) for found in await snapshots.folder_of(self._engine).all()]


def _scope(type_: str | None) -> str:
    """What a setting is changed for: a type, or the workspace, which has no name."""
    return "" if type_ is None else check.name(type_, "type")
