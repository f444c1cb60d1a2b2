"""Each sink hears what it wants of its own workspace, and a sink that cannot be is refused."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import ConflictError, InputError, NotFound, ShiftworkError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import bury, everything
from tests.sinks.receivers import Receiver, receiving
from tests.sinks.steps import add, tell

HOOK = {"name": "ops", "kind": "webhook", "address": "https://example.com/in"}
MAIL = {
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
async def test_a_sink_hears_what_it_wants(
    queue: Queue, clock: MovedClock, receiver: Receiver, wants: dict[str, Any], heard: list[str]
) -> None:
    await add(queue, receiver, wants=wants)
    await bury(queue, type="code")
    await bury(queue, type="docs")
    await queue.trip_breaker("docs")
    await queue.cancel((await queue.submit(type="code")).id)
    await tell(queue, clock)
    assert kinds(receiver) == heard


async def test_other_workspaces_are_not_told(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    other = queue.in_workspace("other")
    async with receiving() as theirs:
        await add(queue, receiver)
        await add(other, theirs)
        await bury(other)
        await tell(queue, clock)
        assert (kinds(receiver), kinds(theirs)) == ([], ["dead_lettered"])
    assert await queue.deliveries() == []
    (sent,) = await other.deliveries()
    with pytest.raises(NotFound):
        await queue.delivery(sent.id)
    with pytest.raises(NotFound):
        await queue.redeliver(sent.id)


@pytest.mark.requirement("C-208")
async def test_the_creator_of_a_cancelled_dependent_is_told(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await queue.use_profile("coscientist")
    await queue.set_setting("idempotency.source", "caller")
    wants = {"alerts": ["dependency_failed"], "creators": ["ada"]}
    await add(queue, receiver, wants=wants)
    first = await queue.submit(type="code", max_attempts=1)
    for creator in ("ada", "bob"):
        await queue.submit(type="code", dependencies=[first.id], created_by=creator)
    (held,) = await queue.claim("worker", start=True)
    await queue.fail(held.token, "crash", "boom", retry=False)
    dependents = (await queue.tasks(status="cancelled")).tasks
    assert {task.created_by for task in dependents} == {"ada", "bob"}
    await tell(queue, clock)
    (got,) = receiver.got
    assert got.json["data"]["message"] == f"Task {first.id} failed; 1 tasks of ada depend on it"


async def test_what_was_not_wanted_is_not_told_after_a_change(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    await queue.submit(type="code")
    await queue.update_sink("ops", wants={"alerts": [], "events": ["task.created"]})
    new = await queue.submit(type="code")
    await tell(queue, clock)
    assert [got.json["data"]["task_id"] for got in receiver.got] == [new.id]


async def test_a_storm_waits_in_the_log_until_some_is_sent(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.duties.notifications.MOST_PENDING", 10)
    monkeypatch.setattr("shiftwork.duties.notifications.PAGE", 8)
    await add(queue, receiver, wants={"alerts": [], "events": ["task.created"]})
    await queue.submit_many([{"type": "code"}] * 40)
    await pass_time(queue, clock, 1)
    assert len(await queue.deliveries()) < 40
    for _ in range(4):
        await tell(queue, clock, 1)
    assert len({got.id for got in receiver.got}) == len(receiver.got) == 40


# -- what is refused ---------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**HOOK, "name": ""}, "sink.name"),
    ({**HOOK, "kind": "pigeon"}, "sink.kind"),
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
    ({**HOOK, "wants": {"severity": "loud"}}, "sink.wants.severity"),
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
async def test_what_cannot_be_a_sink_is_refused(queue: Queue, fields: dict[str, Any], where: str) -> None:
    before = await everything(queue)
    with pytest.raises(ShiftworkError) as refused:
        await queue.add_sink(fields)
    assert (refused.value.code, refused.value.where) == ("invalid_input", where)
    assert await everything(queue) == before


async def test_a_name_is_used_once(queue: Queue) -> None:
    await queue.add_sink(HOOK)
    with pytest.raises(ConflictError) as refused:
        await queue.add_sink(HOOK)
    assert refused.value.code == "id_in_use"
    await queue.in_workspace("other").add_sink(HOOK)
    await queue.remove_sink("ops")
    await queue.add_sink(HOOK)


async def test_a_change_is_checked_like_a_new_sink(queue: Queue) -> None:
    await queue.add_sink(HOOK)
    before = await everything(queue)
    changes: list[dict[str, Any]] = [
        *({}, {"address": "http://10.0.0.1/"}, {"secret": "hush"}, {"wants": {"alerts": []}}),
    ]
    for change in changes:
        with pytest.raises(InputError):
            await queue.update_sink("ops", change)
    with pytest.raises(NotFound):
        await queue.update_sink("nobody", wants={})
    assert await everything(queue) == before


async def test_a_paused_sink_takes_no_test_message(queue: Queue) -> None:
    await queue.add_sink(HOOK)
    await queue.pause_sink("ops")
    with pytest.raises(ConflictError):
        await queue.test_sink("ops")


# -- secrets -----------------------------------------------------------------------------------------------------


async def test_no_secret_is_shown_again(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    hook = await queue.add_sink({**HOOK, "address": "https://user:hush@example.com/services/T0/hush?key=hush"})
    await queue.add_sink(MAIL)
    assert hook.secret is not None
    assert hook.secret not in repr(hook)
    assert hook.sink.address == "https://example.com/…"
    events, _ = await queue.events()
    shown = f"{await queue.sinks()} {events} {hook.sink} {caplog.text}"
    for secret in ("hush", hook.secret, "pass word"):
        assert secret not in shown
