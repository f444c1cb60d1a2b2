"""Types of task: payloads are checked when they are submitted, results when they are handed in, and drift is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, InvalidPayload, NotFound, TooLarge
from shiftwork.testing import MovedClock

TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "words": {"type": "integer", "minimum": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
NUMBER = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
FITS, WRONG = {"text": "a", "words": 2}, {"text": 1, "words": 0}


def declared(name: str = "summarise", payload: Any = TEXT, result: Any = None, **options: Any) -> dict[str, Any]:
    return {"name": name, "payload_schema": payload, "result_schema": result, "options": options}


async def agent(queue: Queue, name: str, *types: dict[str, Any]) -> list[str]:
    """Start a worker that declares its types; return the drift."""
    await queue.agents.register(id=name)
    return [drift.text for type_ in await queue.types.declare(name, list(types)) for drift in type_.drift]


async def refused(call: Any) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        await call
    return caught.value


async def test_payload_that_does_not_fit_is_refused_when_submitted(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    error = await refused(queue.submit(type="summarise", payload=WRONG))
    assert error.code == "invalid_payload"
    assert error.where == "task.payload.text"
    assert error.facts["errors"] == ['text: 1 is not of type "string"', "words: 0 is less than the minimum of 1"]
    assert (await queue.tasks.list()).tasks == []
    assert (await queue.submit(type="summarise", payload=FITS)).status == "ready"
    assert (await queue.submit(type="other", payload=WRONG)).status == "ready"


@pytest.mark.parametrize("payload", [{}, {"text": "a", "wrods": 3}, {"text": None}, {"text": "a", "words": "3"}])
async def test_missing_and_unknown_fields_are_refused(queue: Queue, payload: dict[str, Any]) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    await refused(queue.submit(type="summarise", payload=payload))


async def test_one_wrong_payload_of_a_batch_adds_nothing(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    tasks = [{"type": "summarise", "payload": FITS}, {"type": "summarise", "payload": WRONG}]
    assert (await refused(queue.submit_many(tasks))).where == "tasks[1].payload.text"
    assert (await refused(queue.submit_dag({"tasks": tasks}))).where == "tasks[1].payload.text"
    assert (await queue.tasks.list()).tasks == []


async def test_spawned_tasks_are_checked(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    await queue.submit(type="plan")
    (held,) = await queue.claim("ada", start=True)
    error = await refused(queue.spawn(held.token, [{"type": "summarise", "payload": WRONG}]))
    assert error.where == "tasks[0].payload.text"
    assert len((await queue.tasks.list()).tasks) == 1


async def test_modified_dead_letters_are_checked(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    task = await queue.submit(type="summarise", payload=FITS, max_attempts=1)
    (held,) = await queue.claim("ada", start=True)
    await queue.fail(held.token, "crash", retry=False)
    change = {"payload": WRONG}
    await refused(queue.dead_letters.review(task.id, "modify_and_retry", change=change))
    assert (await queue.get(task.id)).payload == FITS
    await queue.dead_letters.review(task.id, "modify_and_retry", change={"payload": {"text": "b"}})
    assert (await queue.get(task.id)).payload == {"text": "b"}


async def test_triggers_with_a_fixed_payload_are_checked_when_saved(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    on = {"kind": "hook"}
    await refused(queue.triggers.save("hook", on=on, task={"type": "summarise", "payload": WRONG}))
    dag = {"tasks": [{"key": "a", "type": "summarise", "payload": WRONG}]}
    await refused(queue.triggers.save("hook", on=on, dag=dag))
    assert await queue.triggers.list() == []


async def test_triggers_with_parameters_are_checked_when_they_fire(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    template = {"type": "summarise", "payload": {"text": "a", "words": "{{ words }}"}}
    await queue.triggers.save(
        "hook", on={"kind": "hook"}, task=template, parameters={"words": {"type": "integer", "default": 1}}
    )
    await refused(queue.triggers.fire("hook", parameters={"words": 0}))
    assert (await queue.tasks.list()).tasks == []
    await queue.triggers.fire("hook", parameters={"words": 3})
    assert [task.payload for task in (await queue.tasks.list()).tasks] == [{"text": "a", "words": 3}]


async def test_waiting_tasks_keep_running_when_their_schema_changes(queue: Queue) -> None:
    await queue.submit(type="summarise", payload=WRONG)
    await queue.types.save("summarise", payload_schema=TEXT, result_schema=NUMBER)
    (held,) = await queue.claim("ada", start=True)
    assert (await queue.complete(held.token, "anything")).status == "completed"


async def test_result_that_does_not_fit_is_an_invalid_output(queue: Queue) -> None:
    await queue.types.save("summarise", result_schema=NUMBER)
    task = await queue.submit(type="summarise", max_attempts=1)
    (held,) = await queue.claim("ada", start=True)
    await queue.complete(held.token, {"n": "one"})
    found = await queue.get(task.id)
    assert (found.status, found.failure_reason) == ("dead_lettered", "invalid_output")
    assert 'n: "one" is not of type "number"' in (found.last_error or "")
    second = await queue.submit(type="summarise")
    (held,) = await queue.claim("ada", start=True)
    assert (await queue.complete(held.token, {"n": 1})).status == "completed"
    result = (await queue.get(second.id)).result
    assert result is not None
    assert result.verdict is not None
    assert result.verdict.method == "json-schema"


async def test_validation_of_a_task_takes_precedence_over_that_of_its_type(queue: Queue) -> None:
    await queue.types.save("summarise", result_schema=NUMBER)
    output = {"validation": "regex", "validation_schema": "^ok$"}
    await queue.submit(type="summarise", output=output)
    (held,) = await queue.claim("ada", start=True)
    assert (await queue.complete(held.token, text="ok")).status == "completed"


async def test_removed_types_are_no_longer_checked(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT, result_schema=NUMBER)
    await queue.submit(type="summarise", payload=FITS)
    assert await queue.types.remove("summarise")
    assert not await queue.types.remove("summarise")
    with pytest.raises(NotFound, match="summarise"):
        await queue.types.get("summarise")
    await queue.submit(type="summarise", payload=WRONG)
    (held,) = await queue.claim("ada", start=True)
    assert (await queue.complete(held.token, "anything")).status == "completed"


async def test_types_belong_to_their_workspace(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    other = queue.in_workspace("other")
    assert await other.types.list() == []
    await other.submit(type="summarise", payload=WRONG)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"pattern": "(a+)+$" * 5000},
        {"enum": ["x" * 70_000]},
        {"properties": {"a": {"pattern": "(?=x)"}}},
    ],
)
async def test_unusable_schemas_are_refused(queue: Queue, schema: dict[str, Any]) -> None:
    with pytest.raises(InputError) as saved:
        await queue.types.save("summarise", payload_schema=schema)
    assert saved.value.where == "payload_schema"
    await queue.agents.register(id="ada")
    with pytest.raises(InputError) as declaring:
        await queue.types.declare("ada", [declared(), declared("other", None, schema)])
    assert declaring.value.where == "types[1].result_schema"
    assert await queue.types.list() == []


async def test_payload_that_takes_too_long_to_check_is_refused(queue: Queue) -> None:
    deep = {"anyOf": [{"items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}} for _ in range(50)]}
    await queue.types.save("summarise", payload_schema={"properties": {"many": deep}})
    error = await refused(queue.submit(type="summarise", payload={"many": ["x"] * 40_000}))
    assert "too large for its schema" in error.what


async def test_dag_of_a_trigger_that_takes_too_long_to_check_is_refused(queue: Queue) -> None:
    deep = {"anyOf": [{"items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}} for _ in range(50)]}
    await queue.types.save("summarise", payload_schema={"properties": {"many": deep}})
    tasks = [{"key": str(n), "type": "summarise", "payload": {"many": [1] * 5_000}} for n in range(30)]
    with pytest.raises(TooLarge, match="takes too long"):
        await queue.triggers.save("hook", on={"kind": "hook"}, dag={"tasks": tasks})


async def test_change_made_by_another_process_is_seen(queue: Queue, store_url: str) -> None:
    await queue.submit(type="summarise", payload=WRONG)  # this process knows the settings of the workspace
    async with Queue.open(store_url, workspace=queue.workspace) as other:
        await other.types.save("summarise", payload_schema=TEXT)
    queue.engine.settings_cache.forget(queue.workspace)  # a second later
    await refused(queue.submit(type="summarise", payload=WRONG))


async def test_worker_declares_a_type_with_its_schemas(queue: Queue) -> None:
    assert await agent(queue, "ada", declared(result=NUMBER)) == []
    (found,) = await queue.types.list()
    assert (found.name, found.payload_schema, found.result_schema) == ("summarise", TEXT, NUMBER)
    assert (found.set_by, found.drift) == ("worker", [])
    await refused(queue.submit(type="summarise", payload=WRONG))


async def test_change_of_a_type_is_an_event_and_repeating_it_is_none(queue: Queue) -> None:
    await agent(queue, "ada", declared())
    await agent(queue, "ada", declared())
    await agent(queue, "ada", declared(result=NUMBER, max_attempts=5))
    await queue.types.remove("summarise")
    events = [event for event in (await queue.events()).events if event.verb.startswith("type_")]
    assert [(event.names, (event.data or {}).get("changed")) for event in events] == [
        (["type.saved"], ["payload_schema", "result_schema", "options"]),
        (["type.saved"], ["result_schema", "options"]),
        (["type.removed"], None),
    ]


async def test_newest_declaration_wins_and_the_other_worker_is_shown_as_drift(queue: Queue) -> None:
    old, new = declared(), declared(payload=NUMBER)
    await agent(queue, "old", old)
    assert await agent(queue, "new", new) == ["old declares another payload schema"]
    assert (await queue.types.get("summarise")).payload_schema == NUMBER
    assert await agent(queue, "old", old) == ["old declares another payload schema"]
    assert (await queue.types.get("summarise")).payload_schema == NUMBER, "a restart brings nothing back"


async def test_older_declaration_comes_back_when_no_worker_declares_the_newer(queue: Queue) -> None:
    old, new = declared(), declared(payload=NUMBER)
    await agent(queue, "old", old)
    await agent(queue, "new", new)
    await queue.agents.deregister("new")
    assert await agent(queue, "old", old) == []
    assert (await queue.types.get("summarise")).payload_schema == TEXT


async def test_drift_ends_with_the_worker_that_differs(queue: Queue) -> None:
    await agent(queue, "old", declared())
    await agent(queue, "new", declared(payload=NUMBER))
    await queue.agents.deregister("old")
    assert (await queue.types.get("summarise")).drift == []


async def test_worker_does_not_change_a_type_saved_by_an_operator(queue: Queue) -> None:
    await queue.types.save("summarise", payload_schema=TEXT)
    assert await agent(queue, "ada", declared(payload=NUMBER, max_attempts=7)) == [
        "ada declares another payload schema"
    ]
    found = await queue.types.get("summarise")
    assert (found.payload_schema, found.set_by, found.options.max_attempts) == (TEXT, "operator", 7)
    await queue.types.save("summarise", payload_schema=NUMBER)
    assert (await queue.types.get("summarise")).drift == []


async def settings_of(queue: Queue, *keys: str) -> list[tuple[Any, str]]:
    found = {each.key: (each.value, each.source) for each in await queue.settings.list("summarise")}
    return [found[key] for key in keys]


async def test_options_become_settings_of_the_type_with_their_origin(queue: Queue) -> None:
    options: dict[str, Any] = {
        "max_attempts": 7,
        "timeout_sec": 60,
        "retry": {"strategy": "fixed", "initial_delay_sec": 3},
    }
    await agent(queue, "ada", declared(**options))
    code = "code of type summarise"
    keys = ("max_attempts", "timeout_sec", "retry.strategy", "retry.initial_delay_sec")
    assert await settings_of(queue, *keys) == [(7, code), (60, code), ("fixed", code), (3, code)]
    task = await queue.submit(type="summarise", payload=FITS)
    assert ((await queue.get(task.id)).max_attempts, (await queue.get(task.id)).timeout_sec) == (7, 60)
    assert (await queue.get((await queue.submit(type="other")).id)).max_attempts == 3


async def test_setting_of_an_operator_stays_and_is_shown_as_drift(queue: Queue) -> None:
    await queue.settings.set("max_attempts", 2, type="summarise")
    drift = await agent(queue, "ada", declared(max_attempts=7))
    assert drift == ["max_attempts is 2 from type summarise; the code declares 7"]
    assert await settings_of(queue, "max_attempts") == [(2, "type summarise")]
    await queue.settings.unset("max_attempts", type="summarise")
    assert await settings_of(queue, "max_attempts") == [(7, "code of type summarise")]
    assert (await queue.types.get("summarise")).drift == []


async def test_settings_of_the_workspace_are_weaker_than_the_code_of_a_type(queue: Queue) -> None:
    await queue.settings.set("max_attempts", 2)
    await agent(queue, "ada", declared(max_attempts=7))
    assert await settings_of(queue, "max_attempts") == [(7, "code of type summarise")]


@pytest.mark.parametrize(
    "options",
    [
        {"retry": {"nonsense": 1}},
        {"retry": {"strategy": "schedule"}},
        {"max_attempts": 0},
        {"requests": 5},
        {"guards": []},
    ],
)
async def test_invalid_options_are_refused(queue: Queue, options: dict[str, Any]) -> None:
    await queue.agents.register(id="ada")
    with pytest.raises(InputError):
        await queue.types.declare("ada", [declared(**options)])
    assert await queue.types.list() == []


async def test_limit_of_the_code_is_set_changed_and_removed_with_it(queue: Queue) -> None:
    async def limits() -> list[tuple[str, int | None, str]]:
        return [(each.key, each.concurrency, each.set_by) for each in await queue.limits.list()]

    await agent(queue, "ada", declared(concurrency=2))
    assert await limits() == [("type:summarise", 2, "code of type summarise")]
    await agent(queue, "ada", declared(concurrency=3))
    assert await limits() == [("type:summarise", 3, "code of type summarise")]
    await agent(queue, "ada", declared())
    assert await limits() == []


async def test_limit_holds_for_all_workers(queue: Queue) -> None:
    await agent(queue, "ada", declared(concurrency=2))
    await queue.submit_many([{"type": "summarise", "payload": FITS}] * 5)
    assert len(await queue.claim("ada", 5) + await queue.claim("bob", 5)) == 2


async def test_limit_of_an_operator_stays_and_is_shown_as_drift(queue: Queue) -> None:
    await queue.limits.set("type:summarise", concurrency=1)
    (drift,) = await agent(queue, "ada", declared(concurrency=5))
    assert drift == 'the limit is {"concurrency":1}, set by system, not {"concurrency":5} as declared'
    assert [each.concurrency for each in await queue.limits.list()] == [1]


async def test_workers_that_start_together_agree_on_one_declaration(queue: Queue, store_url: str) -> None:
    names = [f"agent-{n}" for n in range(4)]
    for name in names:
        await queue.agents.register(id=name)

    async def start(n: int, name: str) -> None:
        async with Queue.open(store_url, workspace=queue.workspace) as own:
            await own.types.declare(name, [declared(max_attempts=n + 1)])

    await asyncio.gather(*(start(n, name) for n, name in enumerate(names)))
    (found,) = await queue.types.list()
    assert {drift.agent_id for drift in found.drift} == {
        name for n, name in enumerate(names) if n + 1 != found.options.max_attempts
    }


async def test_types_survive_closing_the_queue(store_url: str, clock: MovedClock) -> None:
    async with Queue.open(store_url, clock=clock) as queue:
        await queue.types.save("summarise", payload_schema=TEXT)
    async with Queue.open(store_url, clock=clock) as queue:
        await refused(queue.submit(type="summarise", payload=WRONG))
