"""Runs operations in this process: registers implementations, and passes them the engine and the caller."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from shiftwork import features
from shiftwork.artifacts import transfer
from shiftwork.artifacts.artifact_rows import Owner
from shiftwork.artifacts.model import Artifact
from shiftwork.artifacts.spool import Upload
from shiftwork.engine import idempotency
from shiftwork.engine import read as tasks
from shiftwork.engine.coalesce import Coalescer
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.result_waiters import Kind
from shiftwork.model import check, ids
from shiftwork.model.errors import AmbiguousId, InputError, NotFound, ShiftworkError, WorkspaceMoved
from shiftwork.model.outcome import Outcome, Token, parse_token
from shiftwork.operation.declare import Namespace, Operation, operation_of
from shiftwork.operation.shared import Shared
from shiftwork.search import short_ids
from shiftwork.store import crash_points
from shiftwork.store.store import Tx, Verb

P = ParamSpec("P")
T = TypeVar("T")


class Call:
    """One caller's access to the engine, in one workspace; the executor of a local queue."""

    max_wait_sec = math.inf

    def __init__(self, shared: Shared, workspace: str, caller: Caller, connection: object | None = None) -> None:
        self._shared = shared
        self.workspace = workspace
        self.caller = caller if caller.workspace == workspace else caller._replace(workspace=workspace)
        self.connection = connection
        """The caller's connection, whose transaction the operation becomes part of."""

    @property
    def shared(self) -> Shared:
        return self._shared

    @property
    def engine(self) -> Engine:
        return self.shared.engine

    def joining(self, connection: object) -> Call:
        return Call(self.shared, self.workspace, self.caller, connection)

    def require_here(self) -> None:
        """Raise if the workspace is known to be in another database."""
        if self.workspace in self.shared.left:
            raise WorkspaceMoved(f"the workspace {self.workspace!r} is in another database now")

    async def run(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        """Run a verb with this handle's engine and caller, in one transaction. A repeated request gets the first
        answer.
        """
        self.require_here()
        request = self.caller.idempotency
        call: Verb[T] = functools.partial(self.in_transaction, verb, args, named)
        if request is not None:
            kind, step = _answer_type(verb), request.next_step()
            call = functools.partial(idempotency.run_idempotently, self.workspace, request, step, kind, call)
        if self.connection is not None:
            return await self._run_joined(call)
        answer = await self.engine.store.run(call)
        self.engine.settings_cache.mark_recorded(self.workspace)
        return answer

    async def _run_joined(self, call: Verb[T]) -> T:
        """Run a verb in the caller's transaction. We do not learn how it ends, so nothing it may roll back is
        cached.
        """
        store, settings = self.engine.store, self.engine.settings_cache
        if settings.has(self.workspace):
            return await store.run_on(self.connection, call)
        if (
            not store.one_writer
        ):  # in a separate transaction, so that others in a new workspace need not wait for the caller's
            await store.run(lambda tx: settings.add(tx, self.workspace))
            settings.mark_recorded(self.workspace)
            return await store.run_on(self.connection, call)
        try:
            return await store.run_on(self.connection, call)
        finally:
            settings.forget_recorded(self.workspace)

    async def run_each_time(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        """The same for a verb whose answer is not stored, whatever key its request has."""
        self.require_here()
        answer = await self.engine.store.run(functools.partial(self.in_transaction, verb, args, named))
        self.engine.settings_cache.mark_recorded(self.workspace)
        return answer

    def in_transaction(
        self, verb: Callable[..., Coroutine[Any, Any, T]], args: Any, named: Any, tx: Tx
    ) -> Coroutine[Any, Any, T]:
        if self.shared.one_of_many:
            tx.stay_open()  # for the check of where the workspace is
        if not self.engine.settings_cache.has(self.workspace):
            running = self._first_call(verb, args, named, tx)
        else:
            running = verb(tx, self.engine, self.caller, *args, **named)
        return self._run_here(running, tx) if self.shared.one_of_many else running

    async def _run_here(self, running: Coroutine[Any, Any, T], tx: Tx) -> T:
        """A database that the workspace has left refuses writing verbs; for one that found nothing, check
        explicitly.
        """
        try:
            answer = await running
        except ShiftworkError:
            await self._require_not_left(tx)
            raise
        await self._require_not_left(tx)
        return answer

    async def _first_call(self, verb: Callable[..., Coroutine[Any, Any, T]], args: Any, named: Any, tx: Tx) -> T:
        """Run in a workspace that may be new."""
        await self.engine.settings_cache.add(tx, self.workspace)
        return await verb(tx, self.engine, self.caller, *args, **named)

    async def read(self, verb: Callable[[Tx], Coroutine[Any, Any, T]]) -> T:
        self.require_here()
        if self.shared.one_of_many:
            return await self.engine.store.read(functools.partial(self._read_here, verb))
        return await self.engine.store.read(verb)

    async def _read_here(self, verb: Callable[[Tx], Coroutine[Any, Any, T]], tx: Tx) -> T:
        """Refuse to read the remains of a workspace that has moved."""
        await self._require_not_left(tx)
        return await verb(tx)

    async def _require_not_left(self, tx: Tx) -> None:
        if await tx.one("route_left", workspace=self.workspace) is not None:
            raise WorkspaceMoved(f"the workspace {self.workspace!r} is in another database now")

    async def until(
        self, kind: Kind, key: str, look: Callable[[], Awaitable[T]], has_ended: Callable[[T], bool], wait: float
    ) -> T:
        """Query, and query again when it ends or the time is up; the wait itself costs nothing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        waiters = self.shared.result_waiters
        async with waiters.waiting(kind, key) as woken:
            while True:
                woken.clear()  # before the query: an end during it triggers another
                found = await look()
                left = deadline - loop.time()
                if has_ended(found) or left <= 0:
                    return found
                await waiters.park(woken, left)
                if self.caller.still_allowed is not None:
                    await self.caller.still_allowed()

    def coalescer(
        self, verb: Callable[[Any, Sequence[Any]], Coroutine[Any, Any, Sequence[Any]]]
    ) -> Coalescer[Any, Any]:
        """The coalescer of a verb's calls, for all requests: each item names its own."""
        caller = self.caller._replace(request_id=None)
        key = (verb, self.workspace, caller)
        found = self.shared.coalescers.get(key)
        if found is None:
            if len(self.shared.coalescers) > 1000:
                self.shared.coalescers.clear()  # as many callers; open flushes keep their own
            joined = type(self)(self.shared, self.workspace, caller)
            found = self.shared.coalescers[key] = Coalescer(
                functools.partial(verb, joined), lambda: self.engine.store.operation_max_sec
            )
        return found

    async def find(self, reference: str) -> str:
        """The UUID of a task, however the caller names it; tasks of other workspaces do not exist here."""
        (found,) = await self.find_many([reference])
        if isinstance(found, NotFound):
            raise found
        return found

    async def find_many(self, references: Sequence[str]) -> list[str | NotFound]:
        """The same for many. An id without a task is left to the verb, which raises the same error."""

        async def look(tx: Tx) -> list[str | NotFound]:
            uuids = await tasks.find_many(tx, self.workspace, references)
            rows = await tx.all("read_tasks", items=[(uuid,) for uuid in uuids if uuid is not None])
            unknown = {uuid for uuid in uuids if uuid is not None} - {row["id"] for row in rows}
            merged = await tasks.kept(tx, self.workspace, sorted(unknown))
            uuids = [merged.get(uuid, uuid) if uuid else None for uuid in uuids]
            foreign = {row["id"] for row in rows if row["workspace"] != self.workspace}
            return [
                await self._find_short(tx, reference)
                if uuid is None
                else _unknown(ids.show_task(uuid))
                if uuid in foreign
                else uuid
                for uuid, reference in zip(uuids, references, strict=True)
            ]

        return await self.read(look)

    async def _find_short(self, tx: Tx, reference: str) -> str | NotFound:
        try:
            return await short_ids.find(tx, self.workspace, reference) or _unknown(reference)
        except AmbiguousId as error:
            return error

    async def token(self, token: str | Token) -> Token:
        """A claim token; it may name the task by the caller's own id."""
        (found,) = await self.tokens([token])
        if isinstance(found, NotFound):
            raise found
        return found

    async def tokens(self, tokens: Sequence[str | Token]) -> list[Token | NotFound]:
        """The same for many; an unknown name does not fail the others."""
        if set(map(type, tokens)) <= {Token}:  # of a worker in this process: nothing to look up
            return list(tokens)  # type: ignore[arg-type]  # just checked
        parsed = [_split(token) for token in tokens]
        names = [name for name, _ in parsed if ids.parse(name) is None]
        named = dict(zip(names, await self.find_many(names), strict=True)) if names else {}
        found = [(ids.parse(name) or named[name], fence) for name, fence in parsed]
        return [Token(uuid, fence) if isinstance(uuid, str) else uuid for uuid, fence in found]

    async def execute(self, operation: Operation, values: dict[str, Any]) -> Any:
        return await self.perform(operation, operation.parameters.read(values))

    def perform(self, operation: Operation, values: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """The same with values already checked."""
        implementation = operation.implementation
        assert implementation is not None, f"{operation.name} has no implementation"
        return crash_points.named(operation.name, implementation(self, **values))

    async def upload(self, upload: Upload) -> Artifact:
        return await crash_points.named("artifacts.upload", self._upload(upload))

    async def _upload(self, upload: Upload) -> Artifact:
        owner = await self._owner(upload)
        return await transfer.put(
            self.engine,
            self.run,
            self.workspace,
            upload.source,
            upload.media_type,
            owner,
            upload.artifact_id,
            self.caller.idempotency,
        )

    async def _owner(self, upload: Upload) -> Owner | None:
        name = upload.name or ""
        if upload.token is not None:
            claim = await self.token(upload.token)
            if upload.task is not None and await self.find(upload.task) != claim.id:
                raise InputError("the token belongs to another task", where="token")
            return Owner(claim.id, claim, name)
        return None if upload.task is None else Owner(await self.find(upload.task), None, name)

    def download(self, artifact_id: str, start: int, end: int | None) -> AsyncGenerator[bytes, None]:
        return transfer.stream(self.engine, self.workspace, artifact_id, start, end)


def implements(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[
    [Callable[Concatenate[Call, P], Coroutine[Any, Any, T]]], Callable[Concatenate[Call, P], Coroutine[Any, Any, T]]
]:
    """Register the implementation of the operation declared on this method; the type checker compares the two
    signatures.
    """

    def register(
        function: Callable[Concatenate[Call, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[Call, P], Coroutine[Any, Any, T]]:
        operation_of(method).implementation = function
        return function

    return register


VerbOf = Callable[Concatenate[Tx, Engine, Caller, str, P], Coroutine[Any, Any, T]]
"""A verb of one transaction; it gets the transaction, the engine, the caller, the workspace, and the operation's
parameters."""


def transaction(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[[VerbOf[P, T]], VerbOf[P, T]]:
    """The same for an operation that is one transaction."""

    def register(verb: VerbOf[P, T]) -> VerbOf[P, T]:
        def run(call: Call, **values: Any) -> Coroutine[Any, Any, T]:
            return call.run(verb, call.workspace, **values)

        operation_of(method).implementation = run
        return verb

    return register


def reading(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[[VerbOf[P, T]], VerbOf[P, T]]:
    """The same for an operation that only reads."""

    def register(verb: VerbOf[P, T]) -> VerbOf[P, T]:
        def run(call: Call, **values: Any) -> Coroutine[Any, Any, T]:
            return call.read(functools.partial(_positional, verb, call, values))

        operation_of(method).implementation = run
        return verb

    return register


@functools.lru_cache(1024)
def _answer_type(verb: Callable[..., Any]) -> Any:
    """Read once: it takes longer than many statements."""
    return get_type_hints(verb)["return"]


def _positional(
    function: Callable[..., Coroutine[Any, Any, T]], call: Call, values: dict[str, Any], tx: Tx
) -> Coroutine[Any, Any, T]:
    return function(tx, call.engine, call.caller, call.workspace, **values)


async def check_allowed(queue: Namespace) -> None:
    """Raise if the token of a served caller is no longer valid."""
    executor = queue._executor  # noqa: SLF001  # whichever queue it is
    if isinstance(executor, Call) and executor.caller.still_allowed is not None:
        await executor.caller.still_allowed()


def load_implementations() -> None:
    """Import the operations of every feature, and the extensions."""
    for feature in features.WITH_OPERATIONS:
        import_module(f"shiftwork.{feature}.operations")
    import_module("shiftwork.engine.claims_operations")
    for package in features.EXTENSIONS:
        import_module(f"shiftwork.{package}")


def _split(token: str | Token) -> tuple[str, int]:
    """The task as a claim token names it, and the fence."""
    if isinstance(token, Token):
        return token
    parts = ids.split_token(check.text(token, "token", 300) or "")
    return parse_token(token) if parts is None else parts  # raises the error


def _unknown(name: str) -> NotFound:
    shown = name if ids.parse(name) else repr(name)  # the same error as the verbs'
    return NotFound(f"there is no task {shown}", task_id=name)


def only(outcomes: Sequence[Outcome]) -> Outcome:
    """The answer of a batch of one, its error raised."""
    return outcomes[0].unwrap()
