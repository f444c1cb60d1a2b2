"""Each sink gets the events it wants from its own workspace, and an invalid sink is refused."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import ConflictError, InputError, NotFound, ShiftworkError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, everything
from tests.sinks.receivers import Receiver, receiving
from tests.sinks.steps import add, tell

HOOK: dict[str, Any] = {"name": "ops", "kind": "webhook", "address": "https://example.com/in"}
MAIL: dict[str, Any] = {
    "name": "mail",
    "kind": "email",
    "address": "ada@example.com",
    "server": "smtp://queue@mail.example.com",
    "sender": "queue@example.com",
    "secret": "pass word",
}


def kinds(receiver: Receiver) -> list[str]:
    return sorted(got.json["data"].get("kind") or got.json["type"] for got in receiver.got)


@pytest.mark.parametrize(
    ("wants", "heard"),
    [
        ({}, ["breaker_open", "dead_lettered", "dead_lettered"]),
        ({"severity": "critical"}, ["breaker_open"]),
        ({"alerts": ["dead_lettered"]}, ["dead_lettered", "dead_lettered"]),
        ({"types": ["docs"]}, ["breaker_open", "dead_lettered"]),
        ({"alerts": [], "events": ["task.dead_lettered"]}, ["task.dead_lettered", "task.dead_lettered"]),
        ({"alerts": [], "events": ["task.dead*"], "types": ["docs"]}, ["task.dead_lettered"]),
        ({"alerts": [], "events": ["breaker.*", "task.cancelled"]}, ["breaker.opened", "task.cancelled"]),
    ],
)
async def test_sink_gets_only_events_it_wants(
    queue: Queue, clock: MovedClock, receiver: Receiver, wants: dict[str, Any], heard: list[str]
) -> None:
    await add(queue, receiver, wants=wants)
    await dead_letter(queue, type="code")
    await dead_letter(queue, type="docs")
    await queue.breakers.trip("docs")
    await queue.cancel((await queue.submit(type="code")).id)
    await tell(queue, clock)
    assert kinds(receiver) == heard


async def test_sinks_get_no_events_of_other_workspaces(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    other = queue.in_workspace("other")
    async with receiving() as theirs:
        await add(queue, receiver)
        await add(other, theirs)
        await dead_letter(other)
        await tell(queue, clock)
        assert (kinds(receiver), kinds(theirs)) == ([], ["dead_lettered"])
    assert await queue.deliveries.list() == []
    (sent,) = await other.deliveries.list()
    with pytest.raises(NotFound):
        await queue.deliveries.get(sent.id)
    with pytest.raises(NotFound):
        await queue.deliveries.redeliver(sent.id)


@pytest.mark.requirement("C-208")
async def test_creator_of_a_cancelled_dependent_is_notified(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await queue.settings.use_profile("coscientist")
    await queue.settings.set("idempotency.source", "caller")
    wants = {"alerts": ["dependency_failed"], "creators": ["ada"]}
    await add(queue, receiver, wants=wants)
    first = await queue.submit(type="code", max_attempts=1)
    for creator in ("ada", "bob"):
        await queue.submit(type="code", dependencies=[first.id], created_by=creator)
    (held,) = await queue.claim("worker", start=True)
    await queue.fail(held.token, "crash", "boom", retry=False)
    dependents = (await queue.tasks.list(status="cancelled")).tasks
    assert {task.created_by for task in dependents} == {"ada", "bob"}
    await tell(queue, clock)
    (got,) = receiver.got
    assert got.json["data"]["message"] == f"Task {first.id} failed; 1 tasks of ada depend on it"


async def test_events_unwanted_before_a_change_are_not_sent_later(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    await queue.submit(type="code")
    await queue.sinks.update("ops", wants={"alerts": [], "events": ["task.created"]})
    new = await queue.submit(type="code")
    await tell(queue, clock)
    assert [got.json["data"]["task_id"] for got in receiver.got] == [new.id]


async def test_event_storm_waits_in_the_log_until_deliveries_are_sent(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.notifications.maintenance.MAX_PENDING", 10)
    monkeypatch.setattr("shiftwork.notifications.maintenance.PAGE", 8)
    await add(queue, receiver, wants={"alerts": [], "events": ["task.created"]})
    await queue.submit_many([{"type": "code"}] * 40)
    await pass_time(queue, clock, 1)
    assert len(await queue.deliveries.list()) < 40
    for _ in range(4):
        await tell(queue, clock, 1)
    assert len({got.id for got in receiver.got}) == len(receiver.got) == 40


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**HOOK, "name": ""}, "name"),
    ({**HOOK, "kind": "pigeon"}, "kind"),
    ({**HOOK, "address": "ftp://example.com"}, "address"),
    ({**HOOK, "address": "https://"}, "address"),
    ({**HOOK, "address": "https://example.com:99999"}, "address"),
    ({**HOOK, "address": "https://example.com/a b"}, "address"),
    ({**HOOK, "address": "http://127.0.0.1/"}, "address"),
    ({**HOOK, "address": "http://[::1]/"}, "address"),
    ({**HOOK, "address": "http://[::ffff:10.0.0.1]/"}, "address"),
    ({**HOOK, "address": "http://169.254.169.254/latest"}, "address"),
    ({**HOOK, "address": "http://127.1/", "allow_private": True}, "address"),
    ({**HOOK, "address": "http://2130706433/", "allow_private": True}, "address"),
    ({**HOOK, "address": "http://0x7f000001/", "allow_private": True}, "address"),
    ({**HOOK, "secret": "hush"}, "secret"),
    ({**HOOK, "secret": "whsec_c2hvcnQ="}, "secret"),
    ({**HOOK, "sender": "a@b.c"}, "server"),
    ({**HOOK, "kind": "slack", "secret": "hush"}, "secret"),
    ({**HOOK, "wants": {"alerts": [], "events": []}}, "wants"),
    ({**HOOK, "wants": {"alerts": ["nonsense"]}}, "wants.alerts"),
    ({**HOOK, "wants": {"events": ["task.nonsense"]}}, "wants.events"),
    ({**HOOK, "wants": {"severity": "loud"}}, "wants.severity"),
    ({**MAIL, "server": None}, "server"),
    ({**MAIL, "sender": None}, "sender"),
    ({**MAIL, "sender": "a@b.c, d@e.f"}, "sender"),
    ({**MAIL, "address": "nobody"}, "address"),
    ({**MAIL, "address": "a@b.c\nBcc: d@e.f"}, "address"),
    ({**MAIL, "server": "smtp://queue:hush@example.com"}, "server"),
    ({**MAIL, "server": "smtp://example.com"}, "secret"),
    ({**MAIL, "secret": None}, "secret"),
    ({**MAIL, "server": "smtp://queue@10.0.0.1"}, "server"),
]


@pytest.mark.parametrize(("fields", "where"), REFUSED)
async def test_invalid_sink_is_refused_without_changes(queue: Queue, fields: dict[str, Any], where: str) -> None:
    before = await everything(queue)
    with pytest.raises(ShiftworkError) as refused:
        await queue.sinks.add(**fields)
    assert (refused.value.code, refused.value.where) == ("invalid_input", where)
    assert await everything(queue) == before


async def test_sink_name_is_unique_per_workspace(queue: Queue) -> None:
    await queue.sinks.add(**HOOK)
    with pytest.raises(ConflictError) as refused:
        await queue.sinks.add(**HOOK)
    assert refused.value.code == "id_in_use"
    await queue.in_workspace("other").sinks.add(**HOOK)
    await queue.sinks.remove("ops")
    await queue.sinks.add(**HOOK)


async def test_sink_update_is_checked_like_a_new_sink(queue: Queue) -> None:
    await queue.sinks.add(**HOOK)
    before = await everything(queue)
    changes: list[dict[str, Any]] = [
        *({}, {"address": "http://10.0.0.1/"}, {"secret": "hush"}, {"wants": {"alerts": []}}),
    ]
    for change in changes:
        with pytest.raises(InputError):
            await queue.sinks.update("ops", **change)
    with pytest.raises(NotFound):
        await queue.sinks.update("nobody", wants={})
    assert await everything(queue) == before


async def test_paused_sink_refuses_a_test_message(queue: Queue) -> None:
    await queue.sinks.add(**HOOK)
    await queue.sinks.pause("ops")
    with pytest.raises(ConflictError):
        await queue.sinks.test("ops")


async def test_sink_secrets_are_never_shown_again(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    hook = await queue.sinks.add(**{**HOOK, "address": "https://user:hush@example.com/services/T0/hush?key=hush"})
    await queue.sinks.add(**MAIL)
    assert hook.secret is not None
    assert hook.secret not in repr(hook)
    assert hook.sink.address == "https://example.com/…"
    events = (await queue.events()).events
    shown = f"{await queue.sinks.list()} {events} {hook.sink} {caplog.text}"
    for secret in ("hush", hook.secret, "pass word"):
        assert secret not in shown
