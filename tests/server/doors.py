"""A call for every door that changes something or names something: arranged so that it succeeds, once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from shiftwork import Assignment, Queue
from shiftwork.server.door import Door
from shiftwork.server.routes import DOORS
from tests.conformance.steps import bury, give_folder

BY_NAME = {door.name: door for door in DOORS}


class Call(NamedTuple):
    """What to send to a door."""

    names: dict[str, str] = {}
    body: Any = None
    query: dict[str, str] = {}

    def path(self, door: Door, **more: str) -> str:
        path = door.path.format(**{name: quote(value, safe="") for name, value in self.names.items()})
        asked = urlencode({**self.query, **more})
        return f"{path}?{asked}" if asked else path


Arrange = Callable[[Queue], Awaitable[Call]]
CALLS: dict[str, Arrange] = {}


def call(*names: str) -> Callable[[Arrange], Arrange]:
    """The decorated coroutine arranges a call for the doors of these names."""

    def keep(arrange: Arrange) -> Arrange:
        CALLS.update(dict.fromkeys(names, arrange))
        return arrange

    return keep


async def waiting(queue: Queue, **fields: Any) -> str:
    return (await queue.submit({"type": "noop", **fields})).id


async def held(queue: Queue, *, start: bool = True, **fields: Any) -> Assignment:
    """A claim of an agent that has nothing else to do."""
    await waiting(queue, target_agent_id="ada", **fields)
    (claim,) = await queue.claim("ada", start=start)
    return claim


def under(claim: Assignment, **fields: Any) -> Call:
    return Call({"task_id": claim.id}, {"token": claim.token, **fields})


# -- working -----------------------------------------------------------------------------------------------------


@call("claim")
async def _claim(queue: Queue) -> Call:
    await waiting(queue)
    return Call({}, {"agent_id": "ada"})


@call("start")
async def _start(queue: Queue) -> Call:
    return under(await held(queue, start=False))


@call("heartbeat")
async def _heartbeat(queue: Queue) -> Call:
    return under(await held(queue), usage={"cost_usd": 1, "tokens_in": 5})


@call("progress", "complete", "fail", "release", "pin_session", "current_token")
async def _under_a_claim(queue: Queue) -> Call:
    return under(await held(queue))


@call("verdict")
async def _verdict(queue: Queue) -> Call:
    claim = await held(queue, output={"validation": "test-pass"})
    await queue.complete(claim.token, "patch")
    return under(claim, passed=True, evidence={"exit_code": 0})


@call("message")
async def _message(queue: Queue) -> Call:
    return under(await held(queue), kind="text", text="reading")


@call("spawn")
async def _spawn(queue: Queue) -> Call:
    return under(await held(queue), tasks=[{"type": "noop"}], wait=True)


@call("wait")
async def _wait(queue: Queue) -> Call:
    return under(await held(queue), tasks=[await waiting(queue)])


@call("signal")
async def _signal(queue: Queue) -> Call:
    await queue.wait((await held(queue)).token, "go", signal="go")
    return Call({}, {"name": "go", "data": {"n": 1}})


@call("answer")
async def _answer(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.wait(claim.token, "sure", question="Are you sure?")
    return Call({"task_id": claim.id}, {"value": "yes"})


@call("approve", "reject")
async def _a_guarded_task(queue: Queue) -> Call:
    await queue.set_setting("guards", [{"type": "noop"}])
    return Call({"task_id": await waiting(queue)}, {"note": "seen"})


@call("start_many")
async def _start_many(queue: Queue) -> Call:
    return Call({}, {"tokens": [(await held(queue, start=False)).token]})


@call("release_many")
async def _release_many(queue: Queue) -> Call:
    return Call({}, {"tokens": [(await held(queue)).token]})


@call("heartbeat_many")
async def _heartbeat_many(queue: Queue) -> Call:
    return Call({}, {"heartbeats": [{"token": (await held(queue)).token, "usage": {"cost_usd": 1}}]})


@call("complete_many")
async def _complete_many(queue: Queue) -> Call:
    return Call({}, {"reports": [{"token": (await held(queue)).token, "data": 1}]})


@call("fail_many")
async def _fail_many(queue: Queue) -> Call:
    return Call({}, {"problems": [{"token": (await held(queue)).token, "reason": "crash"}]})


# -- steps and effects -------------------------------------------------------------------------------------------


@call("begin_step")
async def _begin_step(queue: Queue) -> Call:
    return under(await held(queue), name="plan")


@call("complete_step", "steps")
async def _complete_step(queue: Queue) -> Call:
    return under(await held(queue), name="plan", result={"n": 1}, usage={"cost_usd": 1})


@call("begin_effect", "task_effects")
async def _begin_effect(queue: Queue) -> Call:
    return under(await held(queue), name="charge")


@call("finish_effect")
async def _finish_effect(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.begin_effect(claim.token, key="deploy")
    return under(claim, key="deploy", result={"n": 1})


@call("resolve_effect")
async def _resolve_effect(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.begin_effect(claim.token, key="deploy")
    await queue.fail(claim.token, "effect_unknown")
    return Call({}, {"key": "deploy", "happened": True, "result": {"n": 1}})


# -- tasks and DAGs ----------------------------------------------------------------------------------------------


@call("submit")
async def _submit(_queue: Queue) -> Call:
    return Call({}, {"type": "noop"})


@call("get_task", "explain", "history", "cancel")
async def _a_task(queue: Queue) -> Call:
    return Call({"task_id": await waiting(queue)}, {})


@call("get_many", "cancel_many")
async def _some_tasks(queue: Queue) -> Call:
    return Call({}, {"task_ids": [await waiting(queue)]})


@call("update")
async def _update(queue: Queue) -> Call:
    return Call({"task_id": await waiting(queue)}, {"priority": 9})


@call("rerun", "result")
async def _an_ended_task(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.complete(claim.token, {"n": 1})
    return Call({"task_id": claim.id})


@call("rerun_issue")
async def _rerun_issue(queue: Queue) -> Call:
    claim = await held(queue, issue_id="issue 7")
    await queue.complete(claim.token)
    return Call({"issue_id": "issue 7"}, {})


@call("tag_counts")
async def _a_tag(queue: Queue) -> Call:
    await waiting(queue, tags=["red"])
    return Call({"tag": "red"})


@call("submit_dag")
async def _submit_dag(_queue: Queue) -> Call:
    return Call({}, _dag())


def _dag() -> dict[str, Any]:
    return {"tasks": [{"type": "noop", "key": "a"}, {"type": "noop", "dependencies": ["a"]}]}


async def _a_dag(queue: Queue) -> dict[str, str]:
    made = await queue.submit_dag(_dag())
    return {"dag_id": made[0].dag_id or ""}


@call("get_dag", "cancel_dag")
async def _whole_dag(queue: Queue) -> Call:
    return Call(await _a_dag(queue), {})


@call("set_budget")
async def _set_budget(queue: Queue) -> Call:
    return Call({}, {"kind": "dag", "id": (await _a_dag(queue))["dag_id"], "ceiling_usd": 5})


@call("update_dag")
async def _update_dag(queue: Queue) -> Call:
    return Call(await _a_dag(queue), {"title": "other"})


@call("add_to_dag")
async def _add_to_dag(queue: Queue) -> Call:
    return Call(await _a_dag(queue), {"tasks": [{"type": "noop"}]})


# -- agents ------------------------------------------------------------------------------------------------------


@call("register_agent")
async def _register(_queue: Queue) -> Call:
    return Call({}, {"id": "bob", "types": ["noop"]})


@call("get_agent", "agent_heartbeat", "deregister_agent")
async def _an_agent(queue: Queue) -> Call:
    await queue.register_agent(id="bob/2")
    return Call({"agent_id": "bob/2"})


@call("update_agent")
async def _update_agent(queue: Queue) -> Call:
    await queue.register_agent(id="bob")
    return Call({"agent_id": "bob"}, {"status": "draining", "budget_remaining_usd": 5})


@call("runtime_heartbeat")
async def _beat_runtime(queue: Queue) -> Call:
    return Call({"runtime_id": "ada"}, {"holding": [(await held(queue)).token]})


@call("orphans", "runtime_gone")
async def _a_runtime(queue: Queue) -> Call:
    await held(queue)
    return Call({"runtime_id": "ada"})


# -- operating ---------------------------------------------------------------------------------------------------


@call("review")
async def _review(queue: Queue) -> Call:
    return Call({"task_id": await bury(queue)}, {"decision": "retry"})


@call("reviews")
async def _reviews(queue: Queue) -> Call:
    task_id = await bury(queue)
    await queue.review(task_id, "abandon", note="hopeless")
    return Call({"task_id": task_id})


@call("redrive")
async def _redrive(queue: Queue) -> Call:
    await bury(queue)
    (letter,) = await queue.dead_letters()
    return Call({}, {"signature": letter.signature})


@call("pause")
async def _pause(_queue: Queue) -> Call:
    return Call({}, {"type": "noop", "reason": "lunch"})


@call("take_snapshot", "list_snapshots")
async def _snapshot(queue: Queue) -> Call:
    give_folder(queue)
    return Call()


@call("set_quota")
async def _set_quota(_queue: Queue) -> Call:
    return Call({"workspace": "some/where"}, {"max_tasks": 5})


@call("resume")
async def _resume(queue: Queue) -> Call:
    await queue.pause("noop")
    return Call({}, {"type": "noop"})


@call("purge")
async def _purge(queue: Queue) -> Call:
    await waiting(queue)
    return Call({}, {"type": "noop"})


@call("rebalance")
async def _rebalance(queue: Queue) -> Call:
    await queue.register_agent(id="idle")
    await queue.register_agent(id="ada", max_concurrent_tasks=2)
    for _ in range(2):
        await held(queue, start=False)
    return Call()


@call("acknowledge_alert")
async def _an_alert(queue: Queue) -> Call:
    await queue.register_agent(id="bob")
    await queue.set_agent_status("bob", "failed")
    (alert,) = await queue.alerts()
    return Call({"seq": str(alert.seq)})


@call("reset_breaker", "trip_breaker")
async def _a_breaker(queue: Queue) -> Call:
    await queue.submit(type="noop/1")
    await queue.trip_breaker("noop/1")
    return Call({"type": "noop/1"})


@call("configure_breakers")
async def _configure_breakers(_queue: Queue) -> Call:
    return Call({}, {"defaults": {"failureThreshold": 5}, "overrides": {"noop": {"halfOpenAfter": 9}}})


@call("cool_down")
async def _cool_down(_queue: Queue) -> Call:
    return Call({"key": "provider:x,model:a/b"}, {"seconds": 60, "reason": "tired"})


@call("lift_cooldown")
async def _lift_cooldown(queue: Queue) -> Call:
    return Call({"key": (await queue.cool_down("model:a/b", 60)).key})


@call("set_limit")
async def _set_limit(_queue: Queue) -> Call:
    return Call({"key": "model:a/b"}, {"concurrency": 2, "requests": 9, "window_sec": 60})


@call("remove_limit")
async def _remove_limit(queue: Queue) -> Call:
    return Call({"key": (await queue.set_limit("model:a/b", concurrency=2)).key})


@call("change_settings")
async def _change_settings(_queue: Queue) -> Call:
    return Call({}, {"set": {"max_attempts": 7}})


@call("create_token")
async def _create_token(_queue: Queue) -> Call:
    return Call({}, {"name": "ci", "scopes": ["submit"]})


@call("revoke_token")
async def _a_token(queue: Queue) -> Call:
    return Call({"token_id": (await queue.create_token("ci", ["submit"])).id})


@call("move_clock")
async def _move_clock(_queue: Queue) -> Call:
    return Call({}, {"advance_sec": 5})


# -- artifacts ---------------------------------------------------------------------------------------------------


@call("put_artifact")
async def _put_artifact(_queue: Queue) -> Call:
    return Call({}, {"n": 1}, {"name": "numbers.json"})


@call("put_known_artifact")
async def _put_known_artifact(_queue: Queue) -> Call:
    body = {"n": 1}
    sha256 = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return Call({"artifact_id": f"artifact:sha256-{sha256}"}, body)


@call("attach_artifact")
async def _attach_artifact(queue: Queue) -> Call:
    claim = await held(queue)
    return Call({"task_id": claim.id}, {"n": 1}, {"token": claim.token, "name": "numbers.json"})


@call("get_artifact", "artifact_info")
async def _an_artifact(queue: Queue) -> Call:
    return Call({"artifact_id": (await queue.put_artifact(b"theirs")).id})


@call("list_artifacts", "list_inputs")
async def _a_task_with_inputs(queue: Queue) -> Call:
    kept = await queue.put_artifact(b"theirs")
    return Call({"task_id": await waiting(queue, spec={"context_refs": [kept.id]})})


# -- triggers ----------------------------------------------------------------------------------------------------

CRON = {"kind": "cron", "at": "@daily"}


async def armed(queue: Queue) -> str:
    return (await queue.save_trigger("nightly", on=CRON, task={"type": "noop"})).trigger.name


@call("save_trigger")
async def _save_trigger(_queue: Queue) -> Call:
    return Call({"name": "nightly"}, {"on": CRON, "task": {"type": "noop"}})


@call("get_trigger", "remove_trigger", "pause_trigger", "list_firings")
async def _of_trigger(queue: Queue) -> Call:
    return Call({"name": await armed(queue)})


@call("fire_trigger", "preview_trigger")
async def _fire_trigger(queue: Queue) -> Call:
    return Call({"name": await armed(queue)}, {"reason": "now"})


@call("resume_trigger")
async def _resume_trigger(queue: Queue) -> Call:
    return Call({"name": (await queue.pause_trigger(await armed(queue))).name})


# -- notifications -----------------------------------------------------------------------------------------------


async def told(queue: Queue, **fields: Any) -> str:
    """A sink that is never reached, since nothing is sent to it."""
    known = {"name": "ops", "kind": "webhook", "address": "https://example.com/in", **fields}
    return (await queue.add_sink(known)).sink.name


@call("add_sink")
async def _add_sink(_queue: Queue) -> Call:
    wants = {"alerts": ["dead_lettered"], "events": ["task.*"], "types": ["noop"]}
    return Call({}, {"name": "ops", "kind": "webhook", "address": "https://example.com/in", "wants": wants})


@call("get_sink", "remove_sink", "test_sink", "list_sinks")
async def _of_sink(queue: Queue) -> Call:
    return Call({"sink": await told(queue)})


@call("update_sink")
async def _update_sink(queue: Queue) -> Call:
    return Call({"sink": await told(queue)}, {"wants": {"severity": "critical"}})


@call("pause_sink")
async def _pause_sink(queue: Queue) -> Call:
    return Call({"sink": await told(queue)}, {"reason": "holiday"})


@call("resume_sink")
async def _resume_sink(queue: Queue) -> Call:
    return Call({"sink": (await queue.pause_sink(await told(queue))).name})


@call("get_delivery", "redeliver", "list_deliveries")
async def _of_delivery(queue: Queue) -> Call:
    return Call({"delivery_id": (await queue.test_sink(await told(queue))).id})


@call("redeliver_dead")
async def _redeliver_dead(queue: Queue) -> Call:
    return Call({}, {"sink": await told(queue)})


def named() -> list[Door]:
    """Doors with a name in their path, but for hooks, where a signature opens."""
    return [door for door in DOORS if "{" in door.path and door.scope is not None]


def changing() -> list[Door]:
    """Doors that have an effect: some that only look take what they look for as a body."""
    return [door for door in DOORS if door.changes and door.scope not in {None, "read"}]
