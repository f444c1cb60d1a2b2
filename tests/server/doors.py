"""A call for every door that changes something or names something: arranged so that it succeeds, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from shiftwork import Assignment, Queue
from shiftwork.server.door import Door
from shiftwork.server.routes import DOORS
from tests.conformance.steps import bury

BY_NAME = {door.name: door for door in DOORS}


class Call(NamedTuple):
    """What to send to a door."""

    names: dict[str, str] = {}
    body: Any = None

    def path(self, door: Door) -> str:
        return door.path.format(**{name: quote(value, safe="") for name, value in self.names.items()})


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


@call("message")
async def _message(queue: Queue) -> Call:
    return under(await held(queue), kind="text", text="reading")


@call("spawn")
async def _spawn(queue: Queue) -> Call:
    return under(await held(queue), tasks=[{"type": "noop"}], wait=True)


@call("wait")
async def _wait(queue: Queue) -> Call:
    return under(await held(queue), tasks=[await waiting(queue)])


@call("start_many")
async def _start_many(queue: Queue) -> Call:
    return Call({}, {"tokens": [(await held(queue, start=False)).token]})


@call("release_many")
async def _release_many(queue: Queue) -> Call:
    return Call({}, {"tokens": [(await held(queue)).token]})


@call("heartbeat_many")
async def _heartbeat_many(queue: Queue) -> Call:
    return Call({}, {"beats": [{"token": (await held(queue)).token, "usage": {"cost_usd": 1}}]})


@call("complete_many")
async def _complete_many(queue: Queue) -> Call:
    return Call({}, {"reports": [{"token": (await held(queue)).token, "data": 1}]})


@call("fail_many")
async def _fail_many(queue: Queue) -> Call:
    return Call({}, {"problems": [{"token": (await held(queue)).token, "reason": "crash"}]})


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


@call("beat_runtime")
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


def named() -> list[Door]:
    """Doors with a name in their path."""
    return [door for door in DOORS if "{" in door.path]


def changing() -> list[Door]:
    """Doors that have an effect: some that only look take what they look for as a body."""
    return [door for door in DOORS if door.changes and door.scope != "read"]
