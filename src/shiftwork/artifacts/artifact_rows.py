"""Artifacts in the database: content, references to it, and content that nothing refers to.

Their bytes are in a blob store, outside of every transaction (`transfer.py`). A verb that refers to artifacts holds
them, and uses them after it has locked its tasks:

    held = await artifacts.hold(tx, workspace, ids)     # unknown ids are left out
    await artifacts.use(tx, caller, workspace, [Use(task_uuid, "step", artifact_id, "plan")])

A used artifact is kept until its task is purged, an unused one for `artifacts.keep_unreferenced_sec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shiftwork.artifacts.model import Artifact, Attached, Role
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_claims, refusal
from shiftwork.engine.new_events import NewEvent
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import quotas
from shiftwork.model import ids
from shiftwork.model.errors import NotFound, UnknownReference
from shiftwork.model.outcome import Token
from shiftwork.model.references import artifact_hash, show_artifact
from shiftwork.store.store import Row, Tx


class Content(NamedTuple):
    """The facts of uploaded bytes."""

    sha256: str
    size: int
    digests: str
    media_type: str


class Owner(NamedTuple):
    """The task that content was uploaded for, under a claim if there is a token."""

    task_id: str
    token: Token | None
    name: str


class ArtifactUse(NamedTuple):
    """A task's reference to an artifact; a task may use one under several names."""

    task_id: str
    role: Role
    artifact_id: str
    name: str = ""


class StoredContent(NamedTuple):
    """The artifact of uploaded content, and where its bytes are."""

    artifact: Artifact
    place: str


async def mark(tx: Tx, proposed: str) -> str:
    """The prefix of this queue's places in a blob store; the first proposal is kept."""
    known = await tx.one("read_mark")
    if known is None:
        await tx.run("add_mark", mark=proposed)
        known = await tx.one("read_mark")
        assert known is not None
    return str(known["mark"])


async def keep(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    content: Content,
    place: str,
    damaged: str | None,
    owner: Owner | None,
) -> StoredContent:
    """Record content stored at a new place. Known content keeps its old place unless that copy is damaged."""
    if await quotas.enter(tx, engine, workspace) and damaged is None:
        await quotas.admit(tx, engine, workspace, 0, lambda: content.size)
    work = UnitOfWork(tx, engine, caller)
    task = await _lock_owner(work, owner) if owner is not None else None
    row = await tx.one(
        "add_artifact",
        workspace=workspace,
        hash=content.sha256,
        size=content.size,
        media_type=content.media_type,
        place=place,
        digests=content.digests,
        damaged=damaged,
        actor=caller.actor,
        now=tx.now,
    )
    assert row is not None
    left = {place, damaged} - {row["place"], None}
    await tx.insert("insert_litter", [(each, tx.now) for each in sorted(filter(None, left))])
    if owner is not None and task is not None:
        await _attach(work, task, row, owner)
    elif row["place"] == place and damaged is None:
        work.emit_for(workspace, "artifact_added", data=_facts(row))
    await work.save_events()
    return StoredContent(read(row), row["place"])


async def touch(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, sha256: str, place: str, owner: Owner | None
) -> StoredContent | None:
    """Reuse known content whose bytes are intact at this place; None if it has been collected since."""
    work = UnitOfWork(tx, engine, caller)
    task = await _lock_owner(work, owner) if owner is not None else None
    row = await tx.one("touch_artifact", workspace=workspace, hash=sha256, place=place, now=tx.now)
    if row is None:
        return None
    if owner is not None and task is not None:
        await _attach(work, task, row, owner)
    await work.save_events()
    return StoredContent(read(row), row["place"])


async def _attach(work: UnitOfWork, task: Row, row: Row, owner: Owner) -> None:
    workspace = row["workspace"]
    actor = work.caller.for_agent(task["agent_id"]) if owner.token else work.caller.actor
    added = await work.tx.one(
        "add_artifact_use",
        task=owner.task_id,
        role="made" if owner.token else "input",
        hash=row["hash"],
        name=owner.name,
        workspace=workspace,
        actor=actor,
        now=work.now,
    )
    await work.tx.run("want_artifacts", items=[(row["hash"],)], workspace=workspace)
    if added is not None:
        data = {**_facts(row), "name": owner.name or None}
        work.add_event(
            NewEvent(
                work.now,
                workspace,
                "attached",
                actor,
                owner.task_id,
                task["dag_id"],
                request_id=work.caller.request_id,
                fence=owner.token.fence if owner.token else None,
                data=data,
            )
        )


async def _lock_owner(work: UnitOfWork, owner: Owner) -> Row:
    token = owner.token or Token(owner.task_id, 0)
    row = (await lock_claims(work.tx, work.caller, [token])).get(owner.task_id)
    if owner.token and (error := refusal(work.engine, work.caller, token, row)):
        raise error
    if row is None:
        raise NotFound(f"there is no task {ids.show_task(owner.task_id)} to attach it to", where="task")
    return row


def _facts(row: Row) -> dict[str, object]:
    return {"artifact": show_artifact(row["hash"]), "size": row["size"], "media_type": row["media_type"]}


async def hold(tx: Tx, workspace: str, artifact_ids: Iterable[str]) -> dict[str, Row]:
    """The existing ones of these artifacts, by id, locked against collection until the end of the transaction."""
    hashes = sorted({known for id_ in artifact_ids if (known := artifact_hash(id_))})
    rows = await tx.all("hold_artifacts", items=[(each,) for each in hashes], workspace=workspace) if hashes else []
    return {show_artifact(row["hash"]): row for row in rows}


def refuse_unknown(held: Mapping[str, Row], artifact_ids: Iterable[str], where: str) -> None:
    for id_ in artifact_ids:
        if id_ not in held:
            raise UnknownReference(f"there is no artifact {id_!r}", where=where, artifact_id=id_)


async def use(tx: Tx, caller: Caller, workspace: str, uses: Sequence[ArtifactUse]) -> None:
    """Add references to held artifacts; existing references stay unchanged."""
    rows = []
    for each in uses:
        sha256 = artifact_hash(each.artifact_id)
        assert sha256 is not None
        rows.append((each.task_id, each.role, sha256, each.name, workspace, tx.now, caller.actor))
    if rows:
        await tx.run("want_artifacts", items=sorted({(row[2],) for row in rows}), workspace=workspace)
        await tx.insert("insert_artifact_uses", sorted(rows))


async def forget(tx: Tx, task_ids: Sequence[str]) -> None:
    """Drop the references of purged tasks; artifacts without another reference start to age."""
    freed = await tx.all("delete_artifact_uses", items=[(id_,) for id_ in task_ids])
    if freed:
        items = sorted({(row["workspace"], row["hash"]) for row in freed})
        await tx.run("idle_artifacts", items=items, now=tx.now)


def read(row: Row) -> Artifact:
    return Artifact(show_artifact(row["hash"]), row["size"], row["media_type"], row["created_at"], row["created_by"])


async def find(tx: Tx, workspace: str, artifact_id: str) -> Row:
    """The row of an artifact; those of other workspaces do not exist here."""
    sha256 = artifact_hash(artifact_id)
    row = await tx.one("read_artifact", workspace=workspace, hash=sha256) if sha256 else None
    if row is None:
        raise NotFound(f"there is no artifact {artifact_id!r}", artifact_id=artifact_id)
    return row


async def of_task(tx: Tx, workspace: str, task_id: str) -> list[Attached]:
    """All artifacts that a task refers to, oldest first."""
    return [
        Attached(
            show_artifact(row["hash"]),
            row["size"],
            row["media_type"],
            row["role"],
            row["name"] or None,
            row["at"],
            row["actor"],
        )
        for row in await tx.all("artifacts_of_task", id=task_id, workspace=workspace)
    ]
