"""Event, DAG and manual triggers: what fires them, what they create, and what is refused when saved."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import BadText, CircularDependency, InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, finish, take

NOTE = {"type": "note"}
HOOK = {"kind": "hook"}
REPORT = {"tasks": [{"type": "collect", "key": "a"}, {"type": "report", "dependencies": ["a"]}], "title": "report"}


async def emitted(queue: Queue, verb: str) -> list[dict[str, Any]]:
    events = (await queue.events(limit=10_000)).events
    return [event.data or {} for event in events if event.verb == verb]


async def of_type(queue: Queue, type_: str) -> list[Any]:
    return (await queue.tasks.list(type=type_, limit=1000)).tasks


async def when(queue: Queue, *events: str, name: str = "watch", where: Any = None, **template: Any) -> None:
    on = {"kind": "event", "events": list(events), "where": where or {}}
    await queue.triggers.save(name, on=on, **{"task": NOTE, **template} if "dag" not in template else template)


async def test_event_trigger_creates_a_task_with_its_values(queue: Queue, clock: MovedClock) -> None:
    parameters = {"failed": {"from": "task_id"}, "why": {"from": "reason"}}
    task = {"type": "repair", "payload": {"of": "{{ failed }}"}, "title": "Repair after {{ why }}"}
    await when(queue, "task.dead_lettered", task=task, parameters=parameters)
    broken = await dead_letter(queue, type="code")
    await pass_time(queue, clock, 1)
    (made,) = await of_type(queue, "repair")
    assert (made.payload, made.created_by) == ({"of": broken}, "trigger:watch")
    assert made.title.startswith("Repair after ")
    await pass_time(queue, clock, 1)
    assert len(await of_type(queue, "repair")) == 1


async def test_each_later_event_fires_the_trigger_once(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    await when(queue, "task.created", where={"type": "code"})
    await queue.submit_many([{"type": "code"}] * 5 + [{"type": "other"}] * 5)
    for _ in range(3):
        await pass_time(queue, clock, 1)
    assert len(await of_type(queue, "note")) == 5
    assert len(await emitted(queue, "trigger_fired")) == 5


async def test_events_during_a_pause_do_not_fire_the_trigger(queue: Queue, clock: MovedClock) -> None:
    await when(queue, "task.created", where={"type": "code"})
    await queue.triggers.pause("watch")
    await queue.submit(type="code")
    await pass_time(queue, clock, 1)
    await queue.triggers.resume("watch")
    await queue.submit(type="code")
    await pass_time(queue, clock, 1)
    assert len(await of_type(queue, "note")) == 1


async def test_events_of_other_workspaces_do_not_fire(queue: Queue, clock: MovedClock) -> None:
    await when(queue, "task.created")
    await queue.in_workspace("other").submit(type="code")
    await pass_time(queue, clock, 1)
    assert await of_type(queue, "note") == []


async def test_chain_of_triggers_stops_after_five(queue: Queue, clock: MovedClock) -> None:
    await when(queue, "task.created", where={"type": ["code", "note"]})
    await queue.submit(type="code")
    for _ in range(20):
        await pass_time(queue, clock, 1)
    assert len(await of_type(queue, "note")) == 6
    assert [event["reason"] for event in await emitted(queue, "trigger_skipped")] == [
        "5 triggers have fired in a chain"
    ]


async def test_friction_event_fires_a_trigger(queue: Queue, clock: MovedClock) -> None:
    """The rule in the settings detects the condition; the trigger adds a DAG to what that rule creates."""
    rule = {"failure_rate": 0.4, "min_count": 4, "create": {"type": "investigate"}}
    await queue.settings.set("friction", rule)
    parameters = {"signature": {"from": "data.subject"}}
    dag = {"title": "refactor", "tasks": [{"type": "refactor", "payload": {"about": "{{ signature }}"}}]}
    await when(queue, "condition.began", where={"data.kind": "friction"}, dag=dag, parameters=parameters)
    for _ in range(4):
        await dead_letter(queue, type="auth", max_attempts=1)
    await pass_time(queue, clock, 31)
    await pass_time(queue, clock, 1)
    (task,) = await of_type(queue, "refactor")
    assert task.payload["about"].startswith("auth/")


@pytest.mark.requirement("F-206")
async def test_completed_dag_starts_the_next_one(queue: Queue, clock: MovedClock) -> None:
    parameters = {"dag": {"from": "dag_id"}, "name": {"from": "title"}}
    dag = {"title": "report on {{ name }}", "tasks": [{"type": "report", "payload": {"dag": "{{ dag }}"}}]}
    await queue.triggers.save("report", on={"kind": "dag", "title": "pipeline *"}, dag=dag, parameters=parameters)
    first = await queue.submit_dag({"title": "pipeline 7", "tasks": [{"type": "load"}, {"type": "clean"}]})
    await queue.submit_dag({"title": "something else", "tasks": [{"type": "load"}]})
    await finish(queue)
    await pass_time(queue, clock, 1)
    assert await of_type(queue, "report") == []
    await finish(queue)
    await finish(queue)
    await pass_time(queue, clock, 1)
    (made,) = await of_type(queue, "report")
    assert made.payload == {"dag": first[0].dag_id}
    assert (await queue.dags.get(made.dag_id)).title == "report on pipeline 7"


@pytest.mark.parametrize(("ends", "count"), [(["completed"], 0), (["failed"], 1), (["cancelled", "failed"], 1)])
async def test_dag_trigger_fires_for_each_listed_end(
    queue: Queue, clock: MovedClock, ends: list[str], count: int
) -> None:
    await queue.triggers.save("after", on={"kind": "dag", "title": "*", "ends": ends}, task=NOTE)
    await queue.submit_dag({"title": "x", "tasks": [{"type": "code", "max_attempts": 1}]})
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 1)
    assert len(await of_type(queue, "note")) == count


async def test_manual_firing_uses_the_given_parameters(queue: Queue) -> None:
    parameters: dict[str, dict[str, Any]] = {
        "repo": {"from": "payload.repository", "default": "main"},
        "n": {"type": "integer", "default": 1},
    }
    task = {"type": "check", "payload": {"repo": "{{ repo }}", "n": "{{ n }}", "text": "{{ repo }}-{{ n }}"}}
    await queue.triggers.save("check", on={"kind": "hook"}, task=task, parameters=parameters)
    ada = queue.as_caller("human:ada")
    came = await ada.triggers.fire("check", parameters={"n": 7}, facts={"payload": {"repository": "shop"}})
    assert (came.outcome, len(came.tasks)) == ("fired", 1)
    made = await queue.get(came.tasks[0])
    assert (made.created_by, made.payload) == ("human:ada", {"repo": "shop", "n": 7, "text": "shop-7"})
    assert [each.tasks for each in await queue.triggers.firings("check")] == [came.tasks]
    (event,) = await emitted(queue, "trigger_fired")
    assert (event["tasks"], event["dag_id"]) == (came.tasks, came.dag_id)


async def test_trigger_preview_creates_nothing(queue: Queue, clock: MovedClock) -> None:
    on = {"kind": "cron", "at": "@hourly"}
    task = {"type": "audit", "title": "{{ at }}"}
    await queue.triggers.save("audit", on=on, task=task, parameters={"at": {"from": "tick"}})
    seen = await queue.triggers.preview("audit")
    assert seen.task is not None
    assert seen.task["created_by"] == "cron:audit"
    assert seen.next[0] > clock()
    assert [later - earlier for earlier, later in zip(seen.next, seen.next[1:], strict=False)] == [3600.0] * 9
    assert await of_type(queue, "audit") == []
    with pytest.raises(InputError, match="expected string"):
        await queue.triggers.preview("audit", parameters={"at": 5})


async def test_invalid_trigger_parameters_are_refused(queue: Queue) -> None:
    await queue.triggers.save("x", on={"kind": "hook"}, task=NOTE, parameters={"n": {"type": "integer", "from": "n"}})
    for wrong in ({"parameters": {"m": 1}}, {"parameters": {"n": "1"}}, {"parameters": {"n": True}}, {}):
        with pytest.raises(InputError) as refused:
            await queue.triggers.fire("x", **wrong)
        assert str(refused.value.where).startswith("parameters.")
    assert await queue.triggers.firings("x") == []


async def test_parameter_value_is_never_read_as_template(queue: Queue) -> None:
    parameters = {"a": {"from": "a"}, "b": {"default": "secret"}}
    await queue.triggers.save("x", on=HOOK, task={"type": "note", "title": "{{ a }}!"}, parameters=parameters)
    came = await queue.triggers.fire("x", parameters={"a": "{{ b }}"})
    assert (await queue.get(came.tasks[0])).title == "{{ b }}!"


async def test_idempotency_key_of_the_template_is_respected(queue: Queue) -> None:
    task = {"type": "note", "idempotency_key": "one-at-a-time"}
    await queue.triggers.save("x", on={"kind": "hook"}, task=task)
    first = await queue.triggers.fire("x")
    second = await queue.triggers.fire("x")
    assert (second.outcome, second.reason) == ("skipped", f"{first.tasks[0]} has the same idempotency key")


async def test_tasks_are_kept_when_their_trigger_is_removed(queue: Queue) -> None:
    await queue.triggers.save("x", on={"kind": "hook"}, task=NOTE)
    came = await queue.triggers.fire("x")
    assert await queue.triggers.remove("x") is True
    assert await queue.triggers.list() == []
    assert (await queue.get(came.tasks[0])).status == "ready"
    await queue.triggers.save("x", on={"kind": "hook"}, task=NOTE)
    assert await queue.triggers.firings("x") == []


async def test_firings_are_deleted_after_a_month(queue: Queue, clock: MovedClock) -> None:
    await queue.triggers.save("x", on={"kind": "hook"}, task=NOTE)
    await queue.triggers.fire("x")
    await pass_time(queue, clock, 29 * 86_400)
    assert len(await queue.triggers.firings("x")) == 1
    await pass_time(queue, clock, 2 * 86_400)
    assert await queue.triggers.firings("x") == []


@pytest.mark.parametrize(
    ("trigger", "where"),
    [
        ({"on": HOOK}, "task"),
        ({"on": HOOK, "task": NOTE, "dag": REPORT}, "task"),
        ({"on": HOOK, "task": {"title": "no type"}}, "task"),
        ({"on": HOOK, "task": {"type": "note", "colour": "red"}}, "task"),
        ({"on": HOOK, "task": {"type": "note", "priority": 500}}, "task.priority"),
        ({"on": HOOK, "task": {"type": "note", "settings": {"nonsense": 1}}}, "nonsense"),
        ({"on": HOOK, "task": {"type": "note", "id": "fixed"}}, "id"),
        ({"on": HOOK, "task": {"type": "note", "title": "{{ who }}"}}, "parameters"),
        ({"on": HOOK, "task": NOTE, "parameters": {"n": {}}}, "parameters.n"),
        ({"on": HOOK, "task": NOTE, "parameters": {"n n": {"default": "x"}}}, "parameters.n n"),
        ({"on": HOOK, "task": NOTE, "parameters": {"n": {"type": "integer", "default": "x"}}}, "parameters.n"),
        ({"on": HOOK, "task": {**NOTE, "priority": "{{ p }}"}, "parameters": {"p": {"from": "p"}}}, "task.priority"),
        ({"on": HOOK, "dag": {"tasks": "many"}}, "dag.tasks[0]"),
        ({"on": HOOK, "dag": {"tasks": [{"type": "a"}, {"type": "b", "priority": -1}]}}, "dag.tasks[1].priority"),
        ({"on": {**HOOK, "where": {"a": {"like": "x"}}}, "task": NOTE}, "on.where.a"),
        ({"on": {"kind": "event", "events": ["task.vanished"]}, "task": NOTE}, "on.events"),
        ({"on": {"kind": "event", "events": ["trigger.fired"]}, "task": NOTE}, "on.events"),
        ({"on": {"kind": "event", "events": []}, "task": NOTE}, "on.events"),
        ({"on": {"kind": "moon"}, "task": NOTE}, "on.kind"),
    ],
)
async def test_invalid_trigger_is_refused_when_saved(queue: Queue, trigger: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.triggers.save("x", **trigger)
    assert refused.value.where == where, refused.value
    assert await queue.triggers.list() == []


async def test_trigger_with_text_invalid_for_databases_is_refused(queue: Queue) -> None:
    with pytest.raises(BadText):
        await queue.triggers.save("x", on=HOOK, task={"type": "note", "title": "a\0b"})


async def test_cycle_in_a_trigger_dag_is_refused_when_saved(queue: Queue) -> None:
    tasks = [{"type": "a", "key": "a", "dependencies": ["b"]}, {"type": "b", "key": "b", "dependencies": ["a"]}]
    with pytest.raises(CircularDependency):
        await queue.triggers.save("x", on=HOOK, dag={"tasks": tasks})


@pytest.mark.parametrize("name", ["", "a/b", "-x", "a b", "é", "x" * 101])
async def test_invalid_trigger_name_is_refused(queue: Queue, name: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.triggers.save(name, on=HOOK, task=NOTE)
    assert refused.value.where == "name"
