"""Hooks: a delivery signed with the secret starts work once; all others are refused and
reported.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from shiftwork import Queue
from shiftwork.model.errors import HookRefused, InputError, Malformed, ShiftworkError, TooLarge
from shiftwork.testing import MovedClock, pass_time
from shiftwork.triggers import policy
from shiftwork.triggers.hooks import receive_hook
from shiftwork.triggers.model import Firing
from tests import deliveries
from tests.conformance.steps import everything

REVIEW = json.loads((Path(deliveries.ROOT) / "examples" / "review" / "trigger.json").read_text())
SECRET = "a secret that only github knows"
NOTE = {"type": "note"}


async def post(queue: Queue, name: str, headers: dict[str, str], body: bytes) -> Firing:
    return await receive_hook(queue.executor, name, headers, deliveries.stream(body))


async def emitted(queue: Queue, verb: str) -> list[dict[str, Any]]:
    await queue.executor.shared.drain()  # a refusal is notified of after it was answered
    events = (await queue.events(limit=10_000)).events
    return [event.data or {} for event in events if event.verb == verb]


@pytest.fixture
async def review(queue: Queue) -> Queue:
    await queue.triggers.save("review", **REVIEW, secret=SECRET)
    return queue


def signed(body: bytes = deliveries.PULL_REQUEST, event: str = "pull_request") -> dict[str, str]:
    return deliveries.github(SECRET, body, event)


@pytest.mark.requirement("F-205")
async def test_pull_request_hook_creates_review_tasks(review: Queue) -> None:
    came = await post(review, "review", signed(), deliveries.PULL_REQUEST)
    assert (came.outcome, len(came.tasks), came.duplicate) == ("fired", 3, False)
    dag = await review.dags.get(str(came.dag_id))
    assert (dag.title, dag.created_by, dag.total) == ("review acme/shop#42", "human:ada", 3)
    tasks = {task.type: task for task in await review.batch.get(came.tasks)}
    assert tasks["comment"].payload == {"repo": "acme/shop", "number": 42}
    assert tasks["review-code"].title == "Review Retry payments that time out"
    assert [tasks[type_].status for type_ in ("check-style", "review-code", "comment")] == ["ready", "ready", "pending"]
    (event,) = await emitted(review, "trigger_fired")
    assert (event["delivery"], event["tasks"]) == ("72d3162e-cc78-11e3-81ab-4c9367dc0958", came.tasks)


async def test_repeated_delivery_creates_nothing_regardless_of_its_id(review: Queue, clock: MovedClock) -> None:
    first = await post(review, "review", signed(), deliveries.PULL_REQUEST)
    again = await post(review, "review", signed(), deliveries.PULL_REQUEST)
    forged = await post(review, "review", {**signed(), "X-GitHub-Delivery": "made-up"}, deliveries.PULL_REQUEST)
    assert (again.duplicate, forged.duplicate) == (True, True)
    assert again.tasks == forged.tasks == first.tasks
    assert len((await review.tasks.list()).tasks) == 3
    assert [event["reason"] for event in await emitted(review, "trigger_refused")] == ["it was delivered before"]


async def test_delivery_to_unknown_hook_is_verified_like_others(review: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of a refusal, or how much of the body was read, would reveal which hooks exist."""
    checked, verify = [], policy.verify_signature

    def noted(*given: Any) -> Any:
        checked.append(given[0])
        return verify(*given)

    monkeypatch.setattr(policy, "verify_signature", noted)
    for name in ("review", "nothing"):
        with pytest.raises(HookRefused):
            await post(review, name, {}, b"{}")
        with pytest.raises(TooLarge):
            await post(review, name, {}, b" " * 1_048_577)
    assert len(checked) == 2


async def test_flood_of_forged_deliveries_costs_one_transaction_a_minute(
    review: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, run = [], review.engine.store.run

    def noted(verb: Any) -> Any:
        written.append(verb)
        return run(verb)

    monkeypatch.setattr(review.engine.store, "run", noted)
    for _ in range(20):
        with pytest.raises(HookRefused):
            await post(review, "review", {}, b"{}")
    await review.executor.shared.drain()
    assert len(written) == 1
    assert review.engine.counters["hook_refused"] == 20


@pytest.mark.parametrize(
    "change",
    [
        {"X-Hub-Signature-256": "sha256=" + 64 * "0"},
        {"X-Hub-Signature-256": "sha1=" + 40 * "0"},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256=é"},
        {"X-Hub-Signature-256": 10_000 * "x"},
    ],
)
async def test_forged_delivery_is_refused_and_emits_an_event(review: Queue, change: dict[str, str]) -> None:
    before = await everything(review)
    with pytest.raises(HookRefused):
        await post(review, "review", {**signed(), **change}, deliveries.PULL_REQUEST)
    (event,) = await emitted(review, "trigger_refused")
    assert event["trigger"] == "review"
    after = await everything(review)
    assert {table for table in before if before[table] != after[table]} <= {"events", "triggers"}


async def test_delivery_with_changed_body_is_refused(review: Queue) -> None:
    with pytest.raises(HookRefused):
        await post(review, "review", signed(), deliveries.PULL_REQUEST.replace(b"ada", b"eve"))


async def test_refusal_does_not_reveal_whether_hook_exists(review: Queue) -> None:
    await review.triggers.save("nightly", on={"kind": "cron", "at": "@daily"}, task=NOTE)
    stated = []
    for name in ("review", "nightly", "nothing"):
        with pytest.raises(HookRefused) as refused:
            await post(review, name, {}, b"{}")
        stated.append(str(refused.value).replace(name, "NAME"))
    assert len(set(stated)) == 1
    assert [event["trigger"] for event in await emitted(review, "trigger_refused")] == ["review"]


async def test_flood_of_forged_deliveries_emits_one_event_a_minute(review: Queue, clock: MovedClock) -> None:
    for minute in range(3):
        for _ in range(20):
            with pytest.raises(HookRefused):
                await post(review, "review", {}, b"{}")
        assert len(await emitted(review, "trigger_refused")) == minute + 1
        await pass_time(review, clock, 61)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{not json", Malformed),
        (b"\xff\xfe", Malformed),
        (b"", Malformed),
        (b"[" * 100_000, Malformed),
        (b" " * 1_048_577, TooLarge),
        (b'{"action": "opened"}', None),
    ],
)
async def test_signed_but_unreadable_delivery_is_refused_with_event(
    review: Queue, body: bytes, error: type[ShiftworkError] | None
) -> None:
    if error is None:
        assert (await post(review, "review", signed(body), body)).outcome == "skipped"
        assert "does not match the trigger" in (await emitted(review, "trigger_skipped"))[0]["reason"]
        return
    with pytest.raises(error):
        await post(review, "review", signed(body), body)
    assert len(await emitted(review, "trigger_refused")) == 1


async def test_delivery_lacking_template_values_is_refused_and_can_be_resent(review: Queue) -> None:
    payload = json.loads(deliveries.PULL_REQUEST)
    del payload["sender"]
    body = json.dumps(payload).encode()
    with pytest.raises(InputError, match=r"the cause of the firing has no payload\.sender\.login"):
        await post(review, "review", signed(body), body)
    assert await review.triggers.firings("review") == []
    looser = {**REVIEW, "parameters": {**REVIEW["parameters"], "author": {"default": "nobody"}}}
    await review.triggers.save("review", **looser)
    assert (await post(review, "review", signed(body), body)).outcome == "fired"


async def test_delivery_with_text_invalid_for_databases_is_refused(queue: Queue) -> None:
    parameters = {"title": {"from": "payload.title"}}
    await queue.triggers.save("x", on={"kind": "hook", "signature": "github"}, secret=SECRET,
                             task={"type": "note", "title": "{{ title }}"}, parameters=parameters)  # fmt: skip
    for body in (b'{"title": "a\\u0000b"}', b'{"title": "\\ud800"}'):
        with pytest.raises(InputError):
            await post(queue, "x", deliveries.github(SECRET, body, "x"), body)
    assert (await queue.tasks.list()).tasks == []


async def test_paused_hook_creates_no_task(review: Queue) -> None:
    await review.triggers.pause("review")
    came = await post(review, "review", signed(), deliveries.PULL_REQUEST)
    assert (came.outcome, came.reason) == ("skipped", "the trigger is paused")
    await review.triggers.resume("review")
    assert (await post(review, "review", signed(), deliveries.PULL_REQUEST)).outcome == "fired"


async def test_standard_webhook_signature_is_accepted(queue: Queue, clock: MovedClock) -> None:
    saved = await queue.triggers.save("deploys", on={"kind": "hook"}, task=NOTE)
    assert saved.secret is not None
    body = b'{"deployment": "failed"}'
    came = await post(queue, "deploys", deliveries.standard(saved.secret, body, clock()), body)
    assert came.outcome == "fired"
    assert (await post(queue, "deploys", deliveries.standard(saved.secret, body, clock()), body)).duplicate
    another = await post(queue, "deploys", deliveries.standard(saved.secret, body, clock(), "msg_2"), body)
    assert (another.outcome, another.duplicate) == ("fired", False)


@pytest.mark.parametrize("seconds", [-301, 301, 86_400])
async def test_delivery_outside_time_tolerance_is_refused(queue: Queue, clock: MovedClock, seconds: float) -> None:
    secret = (await queue.triggers.save("x", on={"kind": "hook"}, task=NOTE)).secret or ""
    headers = deliveries.standard(secret, b"{}", clock())
    clock.advance(400_000 if seconds < 0 else seconds)
    if seconds < 0:
        headers = deliveries.standard(secret, b"{}", clock() - seconds)
    with pytest.raises(HookRefused):
        await post(queue, "x", headers, b"{}")
    (event,) = await emitted(queue, "trigger_refused")
    assert event["reason"] == "timestamp outside the allowed window"


async def test_signature_covers_time_and_id(queue: Queue, clock: MovedClock) -> None:
    secret = (await queue.triggers.save("x", on={"kind": "hook"}, task=NOTE)).secret or ""
    headers = deliveries.standard(secret, b"{}", clock())
    for name, value in (("webhook-id", "msg_2"), ("webhook-timestamp", str(int(clock()) + 1)), ("webhook-id", "")):
        with pytest.raises(HookRefused):
            await post(queue, "x", {**headers, name: value}, b"{}")
    rotated = f"v1,{'A' * 43}= {headers['webhook-signature']}"
    assert (await post(queue, "x", {**headers, "webhook-signature": rotated}, b"{}")).outcome == "fired"


def aegis(trigger_type: str, person: str, summary: str, **task: Any) -> dict[str, Any]:
    parameters = {"who": {"from": person}, "text": {"from": summary}}
    emitted = {"trigger_type": trigger_type, "created_by": "human:{{ who }}", "trigger_summary": "{{ text }}"}
    return {"task": {"type": "agent", **emitted, **task}, "parameters": parameters}


@pytest.mark.requirement("A-026")
async def test_assignment_event_creates_a_task(queue: Queue) -> None:
    where = {"event": "issues", "payload.action": "assigned", "payload.assignee.login": "coder-bot"}
    template = aegis("assignment", "payload.sender.login", "payload.issue.title", issue_id="{{ issue }}")
    template["parameters"]["issue"] = {"from": "payload.issue.url"}
    on = {"kind": "hook", "signature": "github", "where": where}
    await queue.triggers.save("assigned", on=on, **template, secret=SECRET)
    came = await post(queue, "assigned", signed(deliveries.ASSIGNED, "issues"), deliveries.ASSIGNED)
    task = await queue.get(came.tasks[0])
    assert (task.trigger_type, task.created_by) == ("assignment", "human:ada")
    assert (task.trigger_summary, task.issue_id) == (
        "Payments time out",
        "https://api.github.com/repos/acme/shop/issues/37",
    )


@pytest.mark.requirement("A-027")
async def test_mention_event_creates_a_task(queue: Queue) -> None:
    where = {"event": "issue_comment", "payload.action": "created", "payload.comment.body": {"contains": "@coder"}}
    on = {"kind": "hook", "signature": "github", "where": where}
    template = aegis("mention", "payload.comment.user.login", "payload.comment.body")
    await queue.triggers.save("mention", on=on, **template, secret=SECRET)
    came = await post(queue, "mention", signed(deliveries.MENTION, "issue_comment"), deliveries.MENTION)
    task = await queue.get(came.tasks[0])
    assert (task.trigger_type, task.created_by) == ("mention", "human:bob")
    other = deliveries.MENTION.replace(b"@coder", b"coder")
    assert (await post(queue, "mention", signed(other, "issue_comment"), other)).outcome == "skipped"


@pytest.mark.requirement("A-005")
async def test_each_of_four_trigger_sources_creates_one_task(queue: Queue, clock: MovedClock) -> None:
    for name, event in (("assignment", "issues"), ("mention", "issue_comment")):
        on = {"kind": "hook", "signature": "github", "where": {"event": event}}
        template = aegis(name, "payload.sender.login", "payload.issue.title")
        await queue.triggers.save(name, on=on, **template, secret=SECRET)
    on = {"kind": "hook"}
    chat = await queue.triggers.save("chat", on=on, **aegis("chat", "payload.user", "payload.text"))
    await queue.triggers.save("autopilot", on={"kind": "cron", "at": "@hourly"}, task={"type": "agent"})
    await post(queue, "assignment", signed(deliveries.ASSIGNED, "issues"), deliveries.ASSIGNED)
    await post(queue, "mention", signed(deliveries.MENTION, "issue_comment"), deliveries.MENTION)
    stated = b'{"user": "bob", "text": "how far are you?"}'
    await post(queue, "chat", deliveries.standard(chat.secret or "", stated, clock()), stated)
    await pass_time(queue, clock, 3600)
    found = sorted(str(task.trigger_type) for task in (await queue.tasks.list(type="agent")).tasks)
    assert found == ["assignment", "autopilot", "chat", "mention"]


@pytest.mark.requirement("A-028")
async def test_chat_command_creates_a_task(queue: Queue, clock: MovedClock) -> None:
    on = {"kind": "hook", "signature": "slack", "where": {"payload.command": "/coder"}}
    saved = await queue.triggers.save("chat", on=on, **aegis("chat", "payload.user_name", "payload.text"))
    secret = saved.secret or ""
    fields = {"command": "/coder", "text": "look at the payments & retries", "user_name": "bob", "team_id": "T01"}
    body = urlencode(fields).encode()
    came = await post(queue, "chat", deliveries.slack(secret, body, clock()), body)
    task = await queue.get(came.tasks[0])
    assert (task.trigger_type, task.trigger_summary) == ("chat", "look at the payments & retries")
    with pytest.raises(HookRefused):
        await post(queue, "chat", deliveries.slack("another secret of the same length", body, clock()), body)


@pytest.mark.parametrize("signature", ["standard", "github", "slack"])
async def test_secret_is_returned_once_and_never_in_events(queue: Queue, signature: str) -> None:
    saved = await queue.triggers.save("x", on={"kind": "hook", "signature": signature}, task=NOTE)
    assert saved.secret is not None
    again = await queue.triggers.save("x", on={"kind": "hook", "signature": signature}, task={"type": "other"})
    assert again.secret is None
    events = (await queue.events()).events
    shown = repr([saved, await queue.triggers.list(), await queue.triggers.get("x"), events])
    assert saved.secret not in shown
    kept = await everything(queue)
    assert [table for table, rows in kept.items() if saved.secret in str(rows)] == ["triggers"]


async def test_new_secret_replaces_the_old_one(review: Queue) -> None:
    await review.triggers.save("review", **REVIEW, secret="another secret, newer")
    with pytest.raises(HookRefused):
        await post(review, "review", signed(), deliveries.PULL_REQUEST)
    headers = deliveries.github("another secret, newer", deliveries.PULL_REQUEST, "pull_request")
    assert (await post(review, "review", headers, deliveries.PULL_REQUEST)).outcome == "fired"


@pytest.mark.parametrize(
    ("on", "secret"),
    [
        ({"kind": "hook", "signature": "github"}, "short"),
        ({"kind": "hook", "signature": "github"}, "x" * 300),
        ({"kind": "hook"}, "whsec_!!!"),
        ({"kind": "hook"}, "whsec_AAAA"),
        ({"kind": "cron", "at": "@daily"}, "a secret of nobody's"),
    ],
)
async def test_invalid_secret_is_refused_without_echo(queue: Queue, on: dict[str, Any], secret: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.triggers.save("x", on=on, task=NOTE, secret=secret)
    assert refused.value.where == "secret"
    assert secret not in str(refused.value)
