"""People are notified of questions and approvals with their context and a link, and answer with a button in Slack."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from shiftwork import Queue
from shiftwork.model.errors import HookRefused, InputError, Malformed
from shiftwork.notifications import buttons, public_url, slack_actions
from shiftwork.notifications.model import SlackAnswer
from shiftwork.testing import MovedClock
from tests import deliveries
from tests.conformance.steps import take
from tests.sinks.receivers import Receiver
from tests.sinks.steps import add, tell

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
CITY = {"type": "object", "required": ["city"], "properties": {"city": {"enum": ["Rome", "Oslo"]}}}


async def asking(queue: Queue, schema: Any = CITY, name: str = "where") -> str:
    """A task that asks a person."""
    made = await queue.submit(type="travel", title="Book a flight")
    held = await take(queue)
    await queue.waits.wait(held.token, name, question="Which city?", schema=schema)
    return made.id


async def guarded(queue: Queue) -> str:
    await queue.settings.set("guards", [{"type": "deploy"}])
    return (await queue.submit(type="deploy", title="Ship version 7", payload={"to": "prod"})).id


def pressed(value: Any, url: str | None = None, **more: Any) -> bytes:
    """What Slack posts when a person presses a button."""
    payload = {
        "type": "block_actions",
        "user": {"id": "U024BE7LH", "username": "ada", "team_id": "T1"},
        "actions": [{"type": "button", "action_id": "shiftwork.0", "value": value}],
        "response_url": url,
        **more,
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


async def press(queue: Queue, body: bytes, *, secret: str = SECRET, at: float | None = None) -> SlackAnswer:
    headers = deliveries.slack(secret, body, queue.now() if at is None else at)
    interaction, _ = await slack_actions.verify(queue.engine, queue.workspace, "people", headers, body)
    return await slack_actions.apply(queue, interaction)


async def sent_buttons(queue: Queue, clock: MovedClock, receiver: Receiver) -> dict[str, str]:
    """The values of the buttons that the receiver got, by their labels."""
    await tell(queue, clock)
    elements = receiver.got[-1].json["blocks"][1]["elements"]
    return {each["text"]["text"]: each.get("value", each.get("url")) for each in elements}


async def test_question_is_sent_with_its_context_and_a_link(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await public_url.remember(queue.engine, "https://queue.example/")
    await add(queue, receiver)
    task = await asking(queue)
    await tell(queue, clock)
    (got,) = receiver.got
    data = got.json["data"]
    assert (data["kind"], data["severity"], data["task_id"]) == ("question_asked", "warning", task)
    assert data["message"] == f"Task {task} asks a person: Which city?"
    assert data["link"] == f"https://queue.example/tasks/{task}"
    assert (data["about"]["title"], data["about"]["question"], data["about"]["schema"]) == (
        "Book a flight",
        "Which city?",
        CITY,
    )


async def test_approval_is_sent_with_the_work_and_without_a_link_if_no_address_is_known(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    task = await guarded(queue)
    await tell(queue, clock)
    data = receiver.got[0].json["data"]
    assert (data["kind"], data["task_id"], "link" in data) == ("approval_wanted", task, False)
    assert (data["about"]["title"], data["about"]["payload"]) == ("Ship version 7", {"to": "prod"})
    assert [alert.kind for alert in await queue.alerts.list()] == ["approval_wanted"]


async def test_question_is_answered_in_slack_in_the_name_of_the_person_who_pressed(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await public_url.remember(queue.engine, "https://queue.example")
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    task = await asking(queue)
    found = await sent_buttons(queue, clock, receiver)
    assert receiver.got[0].json["text"] == (
        f"[warning] Task {task} asks a person: Which city? (Book a flight) https://queue.example/tasks/{task}"
    )
    assert list(found) == ["Rome", "Oslo", "Open"]
    answer = await press(queue, pressed(found["Oslo"]))
    assert (answer.status, answer.text) == ("accepted", 'Answered with {"city":"Oslo"} by human:ada@slack')
    held = await take(queue)
    wait = await queue.waits.wait(held.token, "where", question="Which city?", schema=CITY)
    assert (wait.value, wait.answered_by) == ({"city": "Oslo"}, "human:ada@slack")
    assert (await press(queue, pressed(found["Rome"]))).status == "refused"  # a replay decides nothing


@pytest.mark.parametrize(("label", "status"), [("Approve", "ready"), ("Reject", "cancelled")])
async def test_approval_is_decided_in_slack(
    queue: Queue, clock: MovedClock, receiver: Receiver, label: str, status: str
) -> None:
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    task = await guarded(queue)
    found = await sent_buttons(queue, clock, receiver)
    assert list(found) == ["Approve", "Reject"]
    assert (await press(queue, pressed(found[label]))).status == "accepted"
    assert (await queue.get(task)).status == status
    actors = [event.actor for event in (await queue.tasks.history(task)).events]
    assert actors[-1] == "human:ada@slack"


async def test_button_of_changed_work_decides_nothing(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    task = await guarded(queue)
    found = await sent_buttons(queue, clock, receiver)
    await queue.tasks.update(task, {"tags": ["everywhere"]})
    answer = await press(queue, pressed(found["Approve"]))
    assert answer.status == "refused"
    assert "revision" in answer.text
    assert (await queue.get(task)).status == "waiting_approval"


async def test_button_of_an_earlier_question_does_not_answer_the_next(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    task = await asking(queue)
    found = await sent_buttons(queue, clock, receiver)
    await queue.approvals.answer(task, {"city": "Rome"})
    held = await take(queue)
    await queue.waits.wait(held.token, "where to next", question="And then?", schema=CITY)
    answer = await press(queue, pressed(found["Oslo"]))
    assert (answer.status, answer.text) == ("refused", "This was refused: the question is no longer open.")


async def test_request_with_a_wrong_signature_or_an_old_one_is_refused(queue: Queue, receiver: Receiver) -> None:
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    task = await guarded(queue)
    (asked,) = await queue.approvals.list()
    value = json.dumps({"task": task, "decision": "approve", "revision": asked.revision})
    body = pressed(value)
    for refused in (
        press(queue, body, secret="another"),
        press(queue, body, at=queue.now() - 301),
        press(queue, body, at=queue.now() + 301),
        slack_actions.verify(queue.engine, "default", "people", {}, body),
        slack_actions.verify(queue.engine, "default", "none", deliveries.slack(SECRET, body, queue.now()), body),
        slack_actions.verify(queue.engine, "other", "people", deliveries.slack(SECRET, body, queue.now()), body),
    ):
        with pytest.raises(HookRefused):
            await refused
    assert (await queue.get(task)).status == "waiting_approval"
    await add(queue, receiver, "unsigned", kind="slack")
    with pytest.raises(HookRefused):
        await slack_actions.verify(queue.engine, "default", "unsigned", deliveries.slack("", body, queue.now()), body)


@pytest.mark.parametrize(
    "body", [b"", b"payload=", b"payload=%7B", b"payload=[]", b"x=1", b'payload={"type":1}', pressed("{"), pressed("7")]
)
async def test_malformed_signed_request_is_refused(queue: Queue, receiver: Receiver, body: bytes) -> None:
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    with pytest.raises(Malformed):
        await press(queue, body)


async def test_link_button_is_ignored(queue: Queue, receiver: Receiver) -> None:
    await add(queue, receiver, "people", kind="slack", secret=SECRET)
    assert (await press(queue, pressed(None))).status == "ignored"


@pytest.mark.parametrize(
    ("schema", "labels"),
    [
        (CITY, ["Rome", "Oslo"]),
        ({"enum": ["a", 2, None]}, ["a", "2", "null"]),
        ({"type": "boolean"}, ["Yes", "No"]),
        ({"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}, ["Yes", "No"]),
        ({"type": "object", "properties": {"ok": {"type": "boolean"}}}, []),
        ({"type": "string"}, []),
        ({"enum": [str(n) for n in range(30)]}, []),
        ({"enum": ["x" * 3000]}, []),
        (None, []),
    ],
)
def test_few_choices_become_buttons(schema: Any, labels: list[str]) -> None:
    made = buttons.of_request("task_1", {"name": "where", "schema": schema})
    assert [each.label for each in made] == labels


@pytest.mark.parametrize("url", ["queue.example", "ftp://queue.example", "https://", "https://a b", "https://a/?x=1"])
def test_bad_public_url_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        public_url.checked(url)


async def test_link_names_the_workspace(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await public_url.remember(queue.engine, "https://queue.example")
    other = queue.in_workspace("sales team")
    await add(other, receiver)
    task = await asking(other)
    await tell(queue, clock)
    assert receiver.got[0].json["data"]["link"] == f"https://queue.example/tasks/{task}?workspace=sales%20team"


async def test_apprise_sends_to_its_service(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    """Through the service `json://`, to a server of this machine."""
    await public_url.remember(queue.engine, "https://queue.example")
    address = f"json://127.0.0.1:{receiver.port}/in/very-secret-path"
    added = await queue.sinks.add("anyone", "apprise", address, allow_private=True)
    assert added.sink.address == "json://…"
    task = await asking(queue)
    await tell(queue, clock)
    (got,) = receiver.got
    assert got.json["title"] == "Shiftwork: question_asked"
    assert f"Task {task} asks a person: Which city?" in got.json["message"]
    assert f"https://queue.example/tasks/{task}" in got.json["message"]
    receiver.status = 500
    await asking(queue)
    await tell(queue, clock)
    failed = (await queue.deliveries.list("anyone"))[0]
    assert (failed.status, failed.error) == ("pending", "the service did not accept it")


async def test_apprise_is_refused_unless_allowed(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"json://127.0.0.1:{receiver.port}/"
    for wrong, fields in (
        (address, {}),
        ("nothing://x", {"allow_private": True}),
        ("no address", {"allow_private": True}),
        (address, {"allow_private": True, "secret": "x"}),
    ):
        with pytest.raises(InputError):
            await queue.sinks.add("anyone", "apprise", wrong, **fields)
    await queue.sinks.add("anyone", "apprise", address, allow_private=True)
    monkeypatch.setattr(queue.engine, "private_sinks", False)
    await asking(queue)
    await tell(queue, clock)
    assert receiver.got == []
    assert "opens connections itself" in str((await queue.deliveries.list("anyone"))[0].error)
