"""What all parts of a queue's public face share: the engine, the workspace spoken of, and who speaks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, get_type_hints

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.queue import check, read, replies
from shiftwork.queue.coalesce import Coalescer
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fence import Outcome, Token, parse_token
from shiftwork.queue.observation.measuring import Measured, Tally
from shiftwork.queue.observation.status import Counted
from shiftwork.queue.parking import Parking
from shiftwork.store.store import Tx

T = TypeVar("T")


class Shared:
    """Kept once per open queue, however many handles there are."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parking = Parking(engine.store)
        self.coalescers: dict[tuple[Any, ...], Coalescer[Any, Any]] = {}
        self.counting = asyncio.Lock()
        self.counted: dict[str, Counted] = {}
        self.measured = Measured()
        self.tally = Tally(engine)
        self._under_way: set[asyncio.Future[Any]] = set()

    def keep(self, future: asyncio.Future[Any]) -> None:
        """See to the end of something nobody waits for."""
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def note_claim(self, workspace: str, agent_id: str, *, got_work: bool) -> None:
        """Count a claim call; what was counted is written now and then."""
        if self.tally.note(workspace, agent_id, got_work=got_work):
            self.keep(asyncio.ensure_future(self.tally.write()))

    async def settle(self) -> None:
        if self._under_way:
            await asyncio.gather(*self._under_way, return_exceptions=True)


class Handle:
    """A queue as one caller sees it, in one workspace."""

    def __init__(self, shared: Shared, workspace: str, caller: Caller) -> None:
        self._shared = shared
        self._engine = shared.engine
        self.workspace = workspace
        self.caller = caller._replace(workspace=workspace)

    async def _run(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        """One verb with this handle's engine and caller, in one transaction. A repeat is answered as the first was."""
        once = self.caller.once
        if once is None:
            return await self._run_each_time(verb, *args, **named)
        call = functools.partial(self._call, verb, args, named)
        kind, step = get_type_hints(verb)["return"], once.next_step()
        answer: T = await self._engine.store.run(
            functools.partial(replies.once, self.workspace, once, step, kind, call)
        )
        self._engine.book.note_recorded(self.workspace)
        return answer

    async def _run_each_time(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        """The same for a verb whose answer is not kept, whatever key its request has."""
        answer = await self._engine.store.run(functools.partial(self._call, verb, args, named))
        self._engine.book.note_recorded(self.workspace)
        return answer

    async def _call(self, verb: Callable[..., Coroutine[Any, Any, T]], args: Any, named: Any, tx: Tx) -> T:
        await self._engine.book.add(tx, self.workspace)
        return await verb(tx, self._engine, self.caller, *args, **named)

    async def _read(self, verb: Callable[[Tx], Coroutine[Any, Any, T]]) -> T:
        return await self._engine.store.read(verb)

    def _coalescer(
        self, verb: Callable[[Any, Sequence[Any]], Coroutine[Any, Any, Sequence[Any]]]
    ) -> Coalescer[Any, Any]:
        """What joins calls of one verb, whatever request each comes with: their items name it."""
        caller = self.caller._replace(request_id=None)
        key = (verb, self.workspace, caller)
        found = self._shared.coalescers.get(key)
        if found is None:
            if len(self._shared.coalescers) > 1000:
                self._shared.coalescers.clear()  # as many callers; open flushes keep their own
            joined = type(self)(self._shared, self.workspace, caller)
            found = self._shared.coalescers[key] = Coalescer(
                functools.partial(verb, joined), lambda: self._engine.store.operation_max_sec
            )
        return found

    async def _find(self, reference: str) -> str:
        """The UUID of a task, however the caller names it; tasks of other workspaces do not exist here."""
        (found,) = await self._find_many([reference])
        if isinstance(found, NotFound):
            raise found
        return found

    async def _find_many(self, references: Sequence[str]) -> list[str | NotFound]:
        """The same for many. An id without a task is left to the verb, which says the same about it."""

        async def look(tx: Tx) -> list[str | NotFound]:
            uuids = await read.find_many(tx, self.workspace, references)
            rows = await tx.all("read_tasks", items=[(uuid,) for uuid in uuids if uuid is not None])
            unknown = {uuid for uuid in uuids if uuid is not None} - {row["id"] for row in rows}
            merged = await read.kept(tx, self.workspace, sorted(unknown))
            uuids = [merged.get(uuid, uuid) if uuid else None for uuid in uuids]
            foreign = {row["id"] for row in rows if row["workspace"] != self.workspace}
            return [
                _unknown(reference if uuid is None else ids.show_task(uuid))
                if uuid is None or uuid in foreign
                else uuid
                for uuid, reference in zip(uuids, references, strict=True)
            ]

        return await self._read(look)

    def _find_dag(self, reference: str) -> str:
        uuid = ids.parse(reference)
        if uuid is None:
            raise NotFound(f"there is no DAG {reference!r}", dag_id=reference)
        return uuid

    async def _token(self, token: str | Token) -> Token:
        """A claim token; the task may be named by the caller's own id in it."""
        (found,) = await self._tokens([token])
        if isinstance(found, NotFound):
            raise found
        return found

    async def _tokens(self, tokens: Sequence[str | Token]) -> list[Token | NotFound]:
        """The same for many; a name that no task has is no reason to refuse the others."""
        if all(isinstance(token, Token) for token in tokens):  # of a worker in this process: nothing to look up
            return list(tokens)  # type: ignore[arg-type]  # which is what was asked
        told = [_split(token) for token in tokens]
        names = [name for name, _ in told if ids.parse(name) is None]
        named = dict(zip(names, await self._find_many(names), strict=True)) if names else {}
        found = [(ids.parse(name) or named[name], fence) for name, fence in told]
        return [Token(uuid, fence) if isinstance(uuid, str) else uuid for uuid, fence in found]


def _split(token: str | Token) -> tuple[str, int]:
    """The task as a claim token names it, and the fence."""
    if isinstance(token, Token):
        return token
    parts = ids.split_token(check.text(token, "token", 300) or "")
    return parse_token(token) if parts is None else parts  # which says what is wrong with it


def _unknown(name: str) -> NotFound:
    shown = name if ids.parse(name) else repr(name)  # as the verbs say it
    return NotFound(f"there is no task {shown}", task_id=name)


def one(outcomes: Sequence[Outcome]) -> Outcome:
    """The answer of a batch of one, its error raised."""
    return outcomes[0].unwrap()
