"""What agents do with work they have claimed: hold it, hand it in or give it back."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork import tracing
from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.keys import Key
from shiftwork.core.references import ARTIFACT
from shiftwork.core.settings import Bounds
from shiftwork.core.task import NewTask, NewVerdict, Submitted, Usage
from shiftwork.policy.verdict import is_report
from shiftwork.queue import agents, check, finish, in_hand, spawn
from shiftwork.queue.agents import Agent, NewAgent
from shiftwork.queue.face.handle import Handle, one
from shiftwork.queue.face.producing import let_others
from shiftwork.queue.fence import Outcome, Token, Verb, for_each, unknown
from shiftwork.queue.finish import NO_USAGE, Completion, Failure
from shiftwork.queue.in_hand import Beat, BeatAnswer, RuntimeAnswer
from shiftwork.queue.outputs import verdicts
from shiftwork.queue.prepare import prepare, traced


class Report(NamedTuple):
    """A result to be handed in, for `complete_many`."""

    token: str | Token
    data: Any = None
    text: str | None = None
    artifacts: Sequence[str] = ()
    decision_report: Mapping[str, Any] | None = None
    usage: Usage | Mapping[str, Any] | None = None
    verdict: NewVerdict | Mapping[str, Any] | None = None


class Problem(NamedTuple):
    """A failed attempt, for `fail_many`. With `retry=False` it is settled at once.

    A rate limit holds back whoever shares the provider, account and model named; else those its agent registered with,
    else all work of the type.
    """

    token: str | Token
    reason: str | None = None
    error: str | None = None
    usage: Usage | Mapping[str, Any] | None = None
    data: Any = None
    retry: bool = True
    provider: str | None = None
    account: str | None = None
    model: str | None = None


class Working(Handle):
    """Verbs of agents and of the runtimes that host them."""

    # -- agents and runtimes ---------------------------------------------------------------------------------------

    async def register_agent(self, agent: NewAgent | Mapping[str, Any] | None = None, **fields: Any) -> Agent:
        """Announce an agent with what it can do and how much it may hold."""
        new = check.fit(check.read(fields if agent is None else agent, NewAgent, "agent"), "agent")
        return await self._run(agents.register, self.workspace, new)

    async def deregister_agent(self, agent_id: str) -> None:
        """The agent's program ends: it is offline and gets no work until it registers again."""
        await self._run(agents.set_status, self.workspace, check.name(agent_id, "agent_id"), "offline")

    async def agent_heartbeat(self, agent_id: str) -> None:
        """The agent is there, whether or not it holds anything."""
        await self._run(in_hand.beat_agent, self.workspace, check.name(agent_id, "agent_id"))

    async def runtime_heartbeat(self, runtime_id: str, holding: Sequence[str] = ()) -> RuntimeAnswer:
        """One write that extends the lease of all the runtime holds; says which claims to stop."""
        named = check.name(runtime_id, "runtime_id")
        found = await self._tokens(holding)
        tokens = [token for token in found if isinstance(token, Token)]
        answer = await self._run(in_hand.runtime_heartbeat, self.workspace, named, tokens)
        unknown = [said for said, token in zip(holding, found, strict=True) if isinstance(token, NotFound)]
        return answer._replace(lost=[*answer.lost, *unknown])

    async def orphans(self, runtime_id: str) -> list[Outcome]:
        """A runtime has restarted: what it held before is recovered."""
        return await self._run(agents.orphans, self.workspace, check.name(runtime_id, "runtime_id"))

    async def runtime_gone(self, runtime_id: str) -> list[Outcome]:
        """A runtime is known to have died: what it held fails at once, as after silence."""
        return await self._run(agents.runtime_gone, self.workspace, check.name(runtime_id, "runtime_id"))

    # -- holding ---------------------------------------------------------------------------------------------------

    async def start(self, token: str) -> Outcome:
        """Acknowledge a claim: the work begins."""
        return one(await self.start_many([token]))

    async def start_many(self, tokens: Sequence[str]) -> list[Outcome]:
        return await self._each(in_hand.start, await self._tokens(tokens))

    async def _each(self, verb: Verb, items: Sequence[Any]) -> list[Outcome]:
        """A verb for many, of which each has its own outcome; also those whose token names no task."""
        told = [unknown(item) if isinstance(item, NotFound) else item for item in items]
        return await self._run(for_each, verb, told)

    async def heartbeat(
        self, token: str, progress: Any = None, usage: Usage | Mapping[str, Any] | None = None
    ) -> BeatAnswer:
        """Extend the lease of one task; answers continue, cancel, lost or yield."""
        beat = Beat(await self._token(token), _json_or_none(progress), _usage(usage))
        return (await self._run(in_hand.heartbeat, [beat]))[0]

    async def heartbeat_many(
        self, beats: Sequence[tuple[str, Any, Usage | Mapping[str, Any] | None]]
    ) -> list[BeatAnswer]:
        tokens = await self._tokens([token for token, _, _ in beats])
        checked = [_beat(token, progress, usage) for token, (_, progress, usage) in zip(tokens, beats, strict=True)]
        return await self._run(in_hand.heartbeat_each, checked)

    async def progress(self, token: str, value: Any) -> Outcome:
        """Say how far the work is."""
        return (await self._run(in_hand.progress, await self._token(token), _json(value, "progress"))).unwrap()

    async def message(self, token: str, kind: str, text: str, data: Mapping[str, Any] | None = None) -> Outcome:
        """Tell what the agent is doing: kind is tool_call, text or error."""
        check.one_of(kind, in_hand.MESSAGE_KINDS, "kind")
        if data is not None:
            _json(data, "data")
        checked = check.text(text, "text") or ""
        return (await self._run(in_hand.message, await self._token(token), kind, checked, data)).unwrap()

    async def pin_session(self, token: str, session_id: str | None = None, work_dir: str | None = None) -> Outcome:
        """Keep the agent's own conversation with the task, so that a retry can resume it."""
        check.text(session_id, "session_id")
        check.text(work_dir, "work_dir")
        return (await self._run(in_hand.pin_session, await self._token(token), session_id, work_dir)).unwrap()

    # -- ending ----------------------------------------------------------------------------------------------------

    async def complete(
        self,
        token: str,
        data: Any = None,
        *,
        text: str | None = None,
        artifacts: Sequence[str] = (),
        decision_report: Mapping[str, Any] | None = None,
        usage: Usage | Mapping[str, Any] | None = None,
        verdict: NewVerdict | Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Hand in a result. It is accepted once, however often it is sent."""
        report = Report(token, data, text, artifacts, decision_report, usage, verdict)
        item = _completion(await self._token(token), report)
        if self.caller.once is not None:
            return one(await self._complete([item]))
        item = item._replace(request_id=self.caller.request_id)
        answer: Outcome = await self._coalescer(Working._complete).call(item)
        return answer.unwrap()

    async def complete_many(self, reports: Sequence[Report]) -> list[Outcome]:
        """Hand in several; each has its own outcome."""
        tokens = await self._tokens([report.token for report in reports])
        items = [
            token if isinstance(token, NotFound) else _completion(token, report)
            for token, report in zip(tokens, reports, strict=True)
        ]
        return await self._complete(items)

    async def _complete(self, items: Sequence[Completion | NotFound]) -> list[Outcome]:
        """In one transaction, unless validating takes long: then others have their turn in between."""
        outcomes = await self._each(finish.complete, items)
        while postponed := [place for place, outcome in enumerate(outcomes) if outcome.postponed]:
            left = [items[place] for place in postponed]
            unbooked = [item._replace(usage=finish.NO_USAGE) for item in left if isinstance(item, Completion)]
            for place, outcome in zip(postponed, await self._each(finish.complete, unbooked), strict=True):
                outcomes[place] = outcome
        return outcomes

    async def verdict(
        self, token: str, *, passed: bool, evidence: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Outcome:
        """Say whether an output that was handed in without a verdict has passed its tests."""
        told = _verdict({"passed": passed, "evidence": evidence, "note": note})
        return (await self._run(verdicts.give, await self._token(token), told)).unwrap()

    async def fail(
        self,
        token: str,
        reason: str | None = None,
        error: str | None = None,
        *,
        usage: Usage | Mapping[str, Any] | None = None,
        data: Any = None,
        retry: bool = True,
        provider: str | None = None,
        account: str | None = None,
        model: str | None = None,
    ) -> Outcome:
        """Report a failed attempt; answers what became of the task."""
        problem = Problem(token, reason, error, usage, data, retry, provider, account, model)
        return one(await self.fail_many([problem]))

    async def fail_many(self, problems: Sequence[Problem]) -> list[Outcome]:
        tokens = await self._tokens([problem.token for problem in problems])
        items = [
            token if isinstance(token, NotFound) else _failure(token, problem)
            for token, problem in zip(tokens, problems, strict=True)
        ]
        return await self._each(finish.fail, items)

    async def release(self, token: str, reason: str | None = None) -> Outcome:
        """Give a task back without cost."""
        return one(await self.release_many([token], reason))

    async def release_many(self, tokens: Sequence[str], reason: str | None = None) -> list[Outcome]:
        verb = functools.partial(finish.release, reason=check.text(reason, "reason"))
        return await self._each(verb, await self._tokens(tokens))

    # -- subtasks --------------------------------------------------------------------------------------------------

    async def spawn(
        self,
        token: str,
        tasks: Sequence[NewTask | Mapping[str, Any]],
        *,
        wait: bool = False,
        name: str | None = None,
    ) -> list[Submitted]:
        """Add subtasks to the task's own DAG. With `wait` its slot is given back until they are done.

        With a `name` this happens once in the life of the task, like a step: called again, also by a later attempt, it
        spawns nothing and answers with the same subtasks; where they are all done, `wait` gives nothing back.
        """
        resolver = await self._engine.book.get(self._engine.store, self.workspace)
        batch = []
        with tracing.span("spawn", "producer", tasks=len(tasks)):
            origin = tracing.current()
            for place, task in enumerate(tasks):
                new = traced(check.read(task, NewTask, f"tasks[{place}]"), origin)
                batch.append(prepare(new, self.workspace, resolver, f"tasks[{place}]"))
                await let_others(new)
        if not batch:
            raise InputError("there is nothing to spawn", where="tasks")
        lanes = await self._engine.lanes.intern(self._engine.store, {prepared.lane for prepared in batch})
        known = None if name is None else check.name(name, "name")
        return await self._run(spawn.spawn, await self._token(token), batch, lanes, wait=wait, name=known)

    async def wait_for(self, token: str, tasks: Sequence[str]) -> str:
        """Give the slot back until these tasks are done; the task then comes back to an agent that can take it.

        Where they are all done the slot is kept, and the answer is `running`.
        """
        return await self._run(spawn.wait_for, await self._token(token), list(tasks))


def _completion(token: Token, report: Report) -> Completion:
    fields: dict[str, Any] = {} if report.data is None else {"data": report.data}
    if report.text is not None:
        fields["text"] = _words(report.text)
    if artifacts := _references(report.artifacts):
        fields["artifacts"] = artifacts
    if report.decision_report is not None:
        fields["decision_report"] = _object(report.decision_report)
    return Completion(
        token,
        _json(fields, "result") if fields else "{}",
        report.data,
        _usage(report.usage),
        report.text,
        is_report(report.decision_report),
        None if report.verdict is None else _verdict(report.verdict),
        artifacts=[ref for ref in artifacts if ref.startswith(ARTIFACT)] if artifacts else (),
    )


def _failure(token: Token, problem: Problem) -> Failure:
    reason = check.text(problem.reason, "reason", 255)
    error = check.text(problem.error, "error")
    result = None if problem.data is None else _json({"data": problem.data}, "data")
    said = {place: getattr(problem, place) for place in ("provider", "account", "model")}
    named = Key(**{place: check.name(name, place) for place, name in said.items() if name is not None})
    return Failure(token, reason, error, _usage(problem.usage), result, problem.retry, data=problem.data, named=named)


def _beat(token: Token | NotFound, progress: Any, usage: Usage | Mapping[str, Any] | None) -> Beat | BeatAnswer:
    if isinstance(token, NotFound):
        return BeatAnswer(token.facts["task_id"], "lost", token.what)
    return Beat(token, _json_or_none(progress), _usage(usage))


def _words(told: object) -> str:
    """Text of any length that the result has room for."""
    if not isinstance(told, str):
        raise InputError(f"expected text, got {type(told).__name__}", where="text")
    return told


def _references(told: object) -> list[str]:
    """Each is a name, as over HTTP; a text is no list of its letters."""
    if told is None:
        return []
    if isinstance(told, str | bytes) or not isinstance(told, Sequence):
        raise InputError(f"expected a list of references, got {type(told).__name__}", where="artifacts")
    return [check.name(ref, f"artifacts[{place}]") for place, ref in enumerate(told)]


def _object(told: object) -> Mapping[str, Any]:
    if not isinstance(told, Mapping):
        raise InputError(f"expected an object, got {type(told).__name__}", where="decision_report")
    return told


def _verdict(told: NewVerdict | Mapping[str, Any]) -> NewVerdict:
    read = check.read(told, NewVerdict, "verdict")
    check.text(read.note, "verdict.note")
    if read.evidence is not None:
        _json(read.evidence, "verdict.evidence")
    return read


_BOUNDS = Bounds()


def _json(value: Any, where: str) -> str:
    return check.to_json(value, _BOUNDS.result_bytes, _BOUNDS, where)


def _json_or_none(value: Any) -> str | None:
    return None if value is None else _json(value, "progress")


def _usage(usage: Usage | Mapping[str, Any] | None) -> Usage:
    return NO_USAGE if usage is None else check.read(usage, Usage, "usage")
