"""What agents do with work they have claimed: hold it, hand it in or give it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

from shiftwork.client.handle import Handle, batches, given, new_key, of_claim, outcome, part, token_text
from shiftwork.client.producing import new_tasks
from shiftwork.core.errors import NotFound
from shiftwork.core.task import NewTask, NewVerdict, Submitted, Usage
from shiftwork.queue import check
from shiftwork.queue.agents import Agent, NewAgent
from shiftwork.queue.face.working import Problem, Report
from shiftwork.queue.fence import Outcome, Token
from shiftwork.queue.in_hand import BeatAnswer, RuntimeAnswer
from shiftwork.wire.shapes import (
    HeartbeatReply,
    Heartbeats,
    OutcomeReply,
    Outcomes,
    RuntimeBeatReply,
    SubmittedBatch,
)
from shiftwork.wire.waiting import WaitReply

Spent = Usage | Mapping[str, Any] | None


class Working(Handle):
    """Verbs of agents and of the runtimes that host them."""

    # -- agents and runtimes ---------------------------------------------------------------------------------------

    async def register_agent(self, /, agent: NewAgent | Mapping[str, Any] | None = None, **fields: Any) -> Agent:
        return await self._post("/api/agents", Agent, check.read(fields if agent is None else agent, NewAgent, "agent"))

    async def deregister_agent(self, agent_id: str) -> None:
        await self._once(f"/api/agents/{part(agent_id, 'agent_id')}/deregister", NoneType)

    async def agent_heartbeat(self, agent_id: str) -> None:
        with suppress(NotFound):  # nobody is there to be noted
            await self._post(f"/api/agents/{part(agent_id, 'agent_id')}/heartbeat", Agent)

    async def runtime_heartbeat(self, runtime_id: str, holding: Sequence[str] = ()) -> RuntimeAnswer:
        path = f"/api/runtimes/{part(runtime_id, 'runtime_id')}/heartbeat"
        told = await self._post(path, RuntimeBeatReply, {"holding": [token_text(token) for token in holding]})
        return RuntimeAnswer(told.cancel, told.lost, told.unnamed, told.slow_down_sec, told.yields)

    async def orphans(self, runtime_id: str) -> list[Outcome]:
        told = await self._once(f"/api/runtime/{part(runtime_id, 'runtime_id')}/orphans", Outcomes)
        return [outcome(each) for each in told.outcomes]

    async def runtime_gone(self, runtime_id: str) -> list[Outcome]:
        told = await self._once(f"/api/runtimes/{part(runtime_id, 'runtime_id')}/gone", Outcomes)
        return [outcome(each) for each in told.outcomes]

    # -- holding ---------------------------------------------------------------------------------------------------

    async def start(self, token: str) -> Outcome:
        return await self._under(token, "start")

    async def start_many(self, tokens: Sequence[str]) -> list[Outcome]:
        return await self._each("start", "tokens", [token_text(token) for token in tokens])

    async def heartbeat(
        self, token: str, progress: Any = None, usage: Usage | Mapping[str, Any] | None = None
    ) -> BeatAnswer:
        path, text = of_claim(token, "heartbeat")
        body = given(token=text, progress=progress, usage=_usage(usage))
        return _beat(await self._post(path, HeartbeatReply, body, key=_key([usage])))

    async def heartbeat_many(
        self, beats: Sequence[tuple[str, Any, Usage | Mapping[str, Any] | None]]
    ) -> list[BeatAnswer]:
        done: list[BeatAnswer] = []
        for batch in batches(beats):
            body = [given(token=token_text(token), progress=said, usage=_usage(usage)) for token, said, usage in batch]
            key = _key([usage for _, _, usage in batch])
            done += map(
                _beat, (await self._post("/api/batch/heartbeat", Heartbeats, {"heartbeats": body}, key=key)).heartbeats
            )
        return done

    async def progress(self, token: str, value: Any) -> Outcome:
        return await self._under(token, "progress", progress=value)

    async def message(self, token: str, kind: str, text: str, data: Mapping[str, Any] | None = None) -> Outcome:
        return await self._under(token, "messages", key=new_key(), kind=kind, text=text, data=data)

    async def pin_session(self, token: str, session_id: str | None = None, work_dir: str | None = None) -> Outcome:
        return await self._under(token, "session", session_id=session_id, work_dir=work_dir)

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
        fields = _report(Report(token, data, text, artifacts, decision_report, usage, verdict))
        return await self._under(token, "complete", key=_key([usage]), **fields)

    async def complete_many(self, reports: Sequence[Report]) -> list[Outcome]:
        body = [{"token": token_text(report.token), **_report(report)} for report in reports]
        return await self._each("complete", "reports", body, spent=[report.usage for report in reports])

    async def verdict(
        self, token: str, *, passed: bool, evidence: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Outcome:
        return await self._under(token, "verdict", passed=passed, evidence=evidence, note=note)

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
        fields = _problem(Problem(token, reason, error, usage, data, retry, provider, account, model))
        return await self._under(token, "fail", key=_key([usage]), **fields)

    async def fail_many(self, problems: Sequence[Problem]) -> list[Outcome]:
        body = [{"token": token_text(problem.token), **_problem(problem)} for problem in problems]
        return await self._each("fail", "problems", body, spent=[problem.usage for problem in problems])

    async def release(self, token: str, reason: str | None = None) -> Outcome:
        return await self._under(token, "release", key=new_key(), reason=reason)

    async def release_many(self, tokens: Sequence[str], reason: str | None = None) -> list[Outcome]:
        body = [token_text(token) for token in tokens]
        return await self._each("release", "tokens", body, once=True, **given(reason=reason))

    # -- subtasks --------------------------------------------------------------------------------------------------

    async def spawn(
        self,
        token: str,
        tasks: Sequence[NewTask | Mapping[str, Any]],
        *,
        wait: bool = False,
        name: str | None = None,
    ) -> list[Submitted]:
        path, text = of_claim(token, "spawn")
        body = {"token": text, "tasks": new_tasks(tasks), "wait": wait, **given(name=name)}
        return (await self._once(path, SubmittedBatch, body)).tasks

    async def wait_for(self, token: str, tasks: Sequence[str]) -> str:
        path, text = of_claim(token, "wait")
        return (await self._once(path, WaitReply, {"token": text, "tasks": list(tasks)})).status

    # -- one write, and many ---------------------------------------------------------------------------------------

    async def _under(self, token: str | Token, verb: str, *, key: str | None = None, **fields: Any) -> Outcome:
        path, text = of_claim(token, verb)
        return outcome(await self._post(path, OutcomeReply, {"token": text, **given(**fields)}, key=key))

    async def _each(
        self,
        verb: str,
        name: str,
        items: Sequence[Any],
        *,
        spent: Sequence[Spent] = (),
        once: bool = False,
        **more: Any,
    ) -> list[Outcome]:
        done: list[Outcome] = []
        for batch in batches(items):
            key = new_key() if once else _key(spent)
            told = await self._post(f"/api/batch/{verb}", Outcomes, {name: batch, **more}, key=key)
            done += map(outcome, told.outcomes)
        return done


def _key(spent: Sequence[Spent]) -> str | None:
    """A result counts once however often it is sent; money would be booked twice."""
    return new_key() if any(usage is not None for usage in spent) else None


def _usage(usage: Spent) -> Usage | None:
    return None if usage is None else check.read(usage, Usage, "usage")


def _beat(reply: HeartbeatReply) -> BeatAnswer:
    return BeatAnswer(reply.task_id, reply.action, reply.reason, reply.slow_down_sec)


def _report(report: Report) -> dict[str, Any]:
    fields = given(data=report.data, text=report.text, decision_report=report.decision_report)
    told = None if report.verdict is None else check.read(report.verdict, NewVerdict, "verdict")
    return {**fields, **given(usage=_usage(report.usage), verdict=told), "artifacts": report.artifacts}


def _problem(problem: Problem) -> dict[str, Any]:
    fields = given(reason=problem.reason, error=problem.error, data=problem.data, usage=_usage(problem.usage))
    named = given(provider=problem.provider, account=problem.account, model=problem.model)
    return {**fields, **named, "retry": problem.retry}
