"""What an agent keeps of its work while it works: steps that outlive the attempt, and effects that happen once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shiftwork.core.errors import InputError, TooLarge
from shiftwork.core.settings import Bounds
from shiftwork.core.task import Usage
from shiftwork.queue import check, read
from shiftwork.queue.content import transfer
from shiftwork.queue.durable import effects, steps
from shiftwork.queue.durable.effects import LONGEST_KEY, Effect, Which
from shiftwork.queue.durable.steps import Kept, Step
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.finish import NO_USAGE
from shiftwork.store.store import Tx


class Stepping(Handle):
    """Verbs of durable execution."""

    # -- steps -----------------------------------------------------------------------------------------------------

    async def steps(self, task_id: str, *, after: int = 0, limit: int = 100) -> list[Step]:
        """The steps of a task in their order, a page at a time: go on `after` the place of the last.

        A result too large for a page is named by its `artifact`; `begin_step` and `get_artifact` have it whole.
        """
        count = check.page(limit)

        async def load(tx: Tx) -> list[Step]:
            uuid = await read.find(tx, self.workspace, task_id)
            found = await steps.read(tx, self.workspace, uuid, after, count)
            if not found:
                await read.must_exist(tx, self._engine, self.workspace, uuid)
            return found

        return await self._read(load)

    async def begin_step(self, token: str, name: str) -> Step:
        """The step with its result, if this or an earlier attempt has done it; else it is in flight from now on."""
        return await self._whole(await self._run(steps.begin, await self._token(token), check.name(name, "name")))

    async def complete_step(
        self, token: str, name: str, result: Any = None, usage: Usage | Mapping[str, Any] | None = None
    ) -> Step:
        """Store the result of a step with what it cost. The first result stands, however often one is sent."""
        used = NO_USAGE if usage is None else check.read(usage, Usage, "usage")
        named, claim = check.name(name, "name"), await self._token(token)
        told = await self._run(steps.complete, claim, named, await self._keep(result), used)
        return await self._whole(told.unwrap())

    async def _keep(self, result: Any) -> Kept:
        """As it is stored; the bytes of a large one are brought to their artifact before the verb refers to it."""
        bounds = await self._bounds()
        text = check.to_json(result, bounds.step_bytes, bounds, "result")
        data = text.encode()
        if len(data) <= bounds.step_inline_bytes:
            return Kept(result=text)
        if self._engine.depot is None:
            what = f"{len(data)} bytes of JSON, at most {bounds.step_inline_bytes} are kept in the database"
            raise TooLarge(what, where="result", mend="Store less, or give the queue a place for artifacts.")
        kept = await transfer.put_bytes(self._engine, self.caller, self.workspace, data, "application/json")
        return Kept(artifact=kept)

    async def _whole(self, step: Step) -> Step:
        """With its result, wherever that lies."""
        if step.artifact is None:
            return step
        found = await transfer.read_bytes(self._engine, self.workspace, step.artifact)
        return msgspec.structs.replace(step, result=msgspec.json.decode(found))

    # -- effects ---------------------------------------------------------------------------------------------------

    async def begin_effect(self, token: str, name: str | None = None, *, key: str | None = None) -> Effect:
        """Write down the intent to act outside. Only where the answer's status is `new` is it the caller's to do.

        The key is made of the task's idempotency key, or its lineage, and `name`, unless it is given.
        """
        if (name is None) == (key is None):
            raise InputError("an effect has either a name or a key", where="name")
        named = None if name is None else check.name(name, "name")
        given = None if key is None else _key(key)
        return await self._run(effects.begin, await self._token(token), named, given)

    async def finish_effect(self, token: str, key: str, result: Any = None, *, happened: bool = True) -> Effect:
        """Say how an effect ended that was begun under this claim; with `happened=False` it may be tried again."""
        text = await self._as_json(result)
        told = await self._run(effects.finish, await self._token(token), _key(key), text, happened=happened)
        return told.unwrap()

    async def resolve_effect(self, key: str, *, happened: bool, result: Any = None, note: str | None = None) -> Effect:
        """Say of an unknown effect whether it happened. The task that failed over the question is tried again."""
        text = await self._as_json(result)
        said = check.text(note, "note")
        return await self._run(effects.resolve, self.workspace, _key(key), text, said, happened=happened)

    async def effects(
        self,
        task_id: str | None = None,
        *,
        key: str | None = None,
        open_only: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> list[Effect]:
        """Effects in the order of their keys: those of a task, one by its key, or those not known to be done."""
        count = check.page(limit)

        async def load(tx: Tx) -> list[Effect]:
            uuid = None if task_id is None else await read.find(tx, self.workspace, task_id)
            found = await effects.read(tx, self.workspace, Which(uuid, key, open_only, after, count))
            if uuid is not None and not found:
                await read.must_exist(tx, self._engine, self.workspace, uuid)
            return found

        return await self._read(load)

    async def _as_json(self, result: Any) -> str:
        bounds = await self._bounds()
        return check.to_json(result, bounds.step_inline_bytes, bounds, "result")

    async def _bounds(self) -> Bounds:
        return (await self._engine.book.get(self._engine.store, self.workspace)).settings().bounds


def _key(key: str) -> str:
    checked = check.text(key, "key", LONGEST_KEY)
    if not checked:
        raise InputError("must not be empty", where="key")
    return checked
