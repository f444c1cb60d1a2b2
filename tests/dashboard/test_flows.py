"""Dashboard workflows in a browser: search, read, decide, and live updates."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Heard, Site


def call(site: Site, path: str, body: Any = None, method: str | None = None) -> Any:
    """Call the server as another program."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(site.url + path, data, headers, method=method)) as answer:  # noqa: S310  # our own server
        return json.loads(answer.read() or b"null")


def submit(site: Site, **fields: Any) -> str:
    made: dict[str, str] = call(site, "/api/tasks", {"type": "code", **fields})
    return made["id"]


def test_filters_are_kept_in_the_url(page: Page) -> None:
    page.goto("/tasks")
    page.get_by_role("button", name=re.compile("^Dead lettered")).click()
    expect(page).to_have_url(re.compile("status=dead_lettered"))
    expect(page.locator("tbody tr")).to_have_count(6)
    page.get_by_role("button", name=re.compile("^Running")).click()
    expect(page.locator("tbody tr")).to_have_count(11)  # two of them in a batch
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(11)
    expect(page.locator("button[aria-pressed=true]")).to_have_count(2)
    page.get_by_role("button", name="Clear").click()
    expect(page).to_have_url(re.compile("/tasks$"))


def test_new_tasks_appear_without_reload(page: Page, site: Site) -> None:
    page.goto("/tasks")
    expect(page.locator(".stream")).to_have_text("Live")
    submit(site, type="audit", title="Count the chairs")
    expect(page.get_by_role("link", name="Count the chairs")).to_be_visible()


def test_silent_event_stream_is_reopened(page: Page, site: Site) -> None:
    page.clock.install()
    page.goto("/tasks")
    expect(page.locator(".stream")).to_have_text("Live")
    os.kill(site.pid, signal.SIGSTOP)  # nothing is closed, and nothing comes
    try:
        page.clock.fast_forward(50_000)
        expect(page.locator(".stream")).to_have_text("Reconnecting")
    finally:
        os.kill(site.pid, signal.SIGCONT)
    page.clock.fast_forward(2_000)
    expect(page.locator(".stream")).to_have_text("Live")


def test_running_tasks_counted_on_the_overview_are_listed(page: Page, site: Site) -> None:
    task_id = submit(site, type="weigh", title="Weigh the chairs")
    call(site, "/api/tasks/claim", {"agent_id": "wanda", "types": ["weigh"]})
    page.goto("/")
    row = page.get_by_role("table", name="Running tasks").get_by_role("row", name="Weigh the chairs")
    expect(row).to_contain_text("Claimed")
    listed = page.get_by_role("table", name="Running tasks").locator("tbody tr").count()
    expect(page.locator(".tile[data-key=Running] .figure")).to_have_text(str(listed))
    page.locator(".panel", has_text="Running now").get_by_role("link", name="All").click()
    expect(page.locator("tbody tr")).to_have_count(listed)
    call(site, f"/api/tasks/{task_id}/cancel", {"reason": "they were weighed"})


def test_task_page_explains_waiting_and_cancels(page: Page, site: Site) -> None:
    task_id = submit(site, type="fly", title="Fly to the moon")
    page.goto(f"/tasks/{task_id}")
    expect(page.locator(".why")).to_contain_text("No registered agent can take it")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("Reason").fill("too far")
    page.get_by_role("button", name="Cancel the task").click()
    expect(page.locator(".heading .chip")).to_have_text("Cancelled")
    assert call(site, f"/api/tasks/{task_id}")["cancel_reason"] == "too far"


def test_task_page_shows_attempts_steps_cost_and_output(page: Page, site: Site) -> None:
    done = call(site, "/api/tasks?status=completed&limit=200")["tasks"]
    task = next(each for each in done if each["failure_history"])
    page.goto(f"/tasks/{task['id']}")
    expect(page.locator(".timeline li")).to_have_count(len(task["failure_history"]) + 1)
    expect(page.locator(".timeline")).to_contain_text("the provider did not answer within 30 s")
    expect(page.get_by_role("region", name="Steps")).to_contain_text("gather")
    expect(page.get_by_label("Output").locator("pre")).to_contain_text('"summary"')
    expect(page.get_by_label("About")).to_contain_text("tokens in")


def test_artifact_can_be_downloaded(page: Page, site: Site) -> None:
    task_id = submit(site, type="paint", title="Paint the bridge")
    held = call(site, "/api/tasks/claim", {"agent_id": "p", "types": ["paint"], "start": True})["assignments"][0]
    where = f"{site.url}/api/tasks/{task_id}/artifacts?name=plan.txt&token={held['token']}"
    with urlopen(Request(where, b"two coats of red", {"Content-Type": "text/plain"})):  # noqa: S310  # our own server
        page.goto(f"/tasks/{task_id}")
    with page.expect_download() as saved:
        page.get_by_label("Artifacts").get_by_role("button", name="Save").click()
    assert saved.value.suggested_filename == "plan.txt"
    assert saved.value.path().read_text() == "two coats of red"


def test_priority_of_a_waiting_task_can_be_changed(page: Page, site: Site) -> None:
    task_id = submit(site, type="wait", title="Wait for it", priority=50)
    page.goto(f"/tasks/{task_id}")
    page.get_by_role("button", name="Priority").click()
    page.get_by_role("spinbutton").fill("7")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_label("About")).to_contain_text("set to 7")


def test_question_is_answered_in_a_form_from_its_schema(page: Page, site: Site) -> None:
    page.goto("/approvals")
    card = page.get_by_role("article", name="Write the launch mail")
    card.get_by_role("button", name="Answer").click()
    expect(card).to_be_visible()  # the headline is required
    card.get_by_label("Headline").fill("It is here")
    card.get_by_label("When to launch").select_option("tomorrow")
    card.get_by_label("Discount in percent").fill("15")
    card.get_by_label("Announce it by mail").select_option("Yes")
    submit(site, type="noise", title="Meanwhile")  # what happens elsewhere leaves the form alone
    expect(card.get_by_label("Headline")).to_have_value("It is here")
    card.get_by_role("button", name="Answer").click()
    expect(card).to_have_count(0)
    output = call(site, "/api/events?limit=10000")["events"]
    assert any(event["verb"] == "question_answered" for event in output)


def test_guarded_task_is_approved_or_rejected(page: Page, site: Site) -> None:
    kept = submit(site, type="deploy", title="Deploy the tax change")
    page.goto("/approvals")
    card = page.get_by_role("article", name="Deploy the tax change")
    card.get_by_role("button", name="Reject").click()
    page.get_by_label("Note (kept with the decision)").fill("not on a Friday")
    page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    expect(card).to_have_count(0)
    assert call(site, f"/api/tasks/{kept}")["status"] in {"cancelled", "failed"}
    good = submit(site, type="deploy", title="Deploy the typo")
    page.get_by_role("article", name="Deploy the typo").get_by_role("button", name="Approve").click()
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(page.get_by_role("article", name="Deploy the typo")).to_have_count(0)
    assert call(site, f"/api/tasks/{good}")["status"] == "ready"


def test_dead_letters_are_shown_and_redriven_together(page: Page, site: Site) -> None:
    page.goto("/dead-letters")
    group = page.locator("section.panel", has_text="KeyError")
    expect(group).to_contain_text("6 tasks")
    group.get_by_role("button", name="Show").click()
    expect(group.locator(".letters > li")).to_have_count(6)
    group.locator(".letters > li").first.get_by_role("button", name="Abandon").click()
    page.get_by_role("dialog").get_by_role("button", name="Abandon").click()
    expect(group).to_contain_text("5 tasks")
    group.get_by_role("button", name="Retry all").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(group).to_have_count(0)
    assert len(call(site, "/api/tasks?type=import&status=ready")["tasks"]) == 5


def test_dag_graph_updates_with_the_work(page: Page, site: Site) -> None:
    dag = {
        "title": "Two steps",
        "tasks": [
            {"key": "a", "type": "first", "title": "Begin"},
            {"key": "b", "type": "second", "title": "End", "dependencies": ["a"]},
        ],
    }
    made = call(site, "/api/dags", dag)["tasks"]
    page.goto(f"/dags/{made[0]['dag_id']}")
    expect(page.locator(".node")).to_have_count(2)
    expect(page.locator(".edge.critical")).to_have_count(1)
    first = page.get_by_role("button", name="Begin, ready")
    first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Task")).to_contain_text("Begin")
    held = call(site, "/api/tasks/claim", {"agent_id": "f", "types": ["first"], "start": True})["assignments"][0]
    expect(page.get_by_role("button", name="Begin, running")).to_be_visible()
    call(site, f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"]})
    expect(page.get_by_role("button", name="Begin, completed")).to_be_visible()
    expect(page.get_by_role("button", name="End, ready")).to_be_visible()
    expect(page.locator(".big")).to_contain_text("1 of 2 done")


def test_task_is_run_again_from_a_step_with_another_payload(page: Page, site: Site) -> None:
    made = call(site, "/api/tasks", {"type": "rewound", "title": "Rewound", "payload": {"tone": "dry"}})
    held = call(site, "/api/tasks/claim", {"agent_id": "f", "types": ["rewound"], "start": True})["assignments"][0]
    path = f"/api/tasks/{made['id']}"
    for name in ("plan", "draft"):
        call(site, f"{path}/steps", {"token": held["token"], "name": name, "result": 1})
    call(site, f"{path}/complete", {"token": held["token"]})
    page.goto(f"/tasks/{made['id']}")
    page.get_by_role("button", name="Run again").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload").fill('{"tone": "cheerful"}')
    dialog.get_by_label("From step").fill("draft")
    dialog.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Superseded by")).to_be_visible()
    (fresh,) = call(site, "/api/tasks?type=rewound&status=ready")["tasks"]
    assert (fresh["payload"], fresh["rerun_of"]) == ({"tone": "cheerful"}, made["id"])
    assert [step["name"] for step in call(site, f"/api/tasks/{fresh['id']}/steps")["steps"]] == ["plan"]


def test_dag_graph_follows_a_dag_that_grew_and_was_rerun(page: Page, site: Site) -> None:
    """A later task joined it, and the first one was rerun: the new task takes its place and its edges."""
    first, second = call(site, "/api/tasks", [{"type": "grow", "title": "First"}, {"type": "alone", "title": "Other"}])
    last = call(site, "/api/tasks", {"type": "grow", "title": "Last", "dependencies": [first["id"], second["id"]]})
    call(site, f"/api/tasks/{first['id']}/cancel", {})
    once = call(site, f"/api/tasks/{first['id']}/rerun", {})
    call(site, f"/api/tasks/{once['task_id']}/cancel", {})
    call(site, f"/api/tasks/{first['id']}/rerun", {})
    page.goto(f"/dags/{last['dag_id']}")
    expect(page.locator("svg.graph [role=button]")).to_have_count(2)
    expect(page.locator("svg.graph path.edge")).to_have_count(1)
    page.locator("svg.graph").get_by_role("button", name="Last").click()
    expect(page.get_by_text("Depends on other DAGs")).to_be_visible()


def test_dag_graph_of_hundreds_of_tasks_has_no_overlaps(page: Page, site: Site) -> None:
    tasks: list[dict[str, Any]] = [{"key": "t0", "type": "wide"}]
    tasks += [
        {"key": f"t{n}", "type": "wide", "title": f"Part {n}", "dependencies": [f"t{(n - 1) // 3}"]}
        for n in range(1, 300)
    ]
    made = call(site, "/api/dags", {"title": "Wide", "tasks": tasks})["tasks"]
    page.goto(f"/dags/{made[0]['dag_id']}")
    expect(page.locator(".node")).to_have_count(300)
    boxes = page.evaluate("[...document.querySelectorAll('.node')].map(n => n.getBoundingClientRect().toJSON())")
    assert len({(round(box["x"]), round(box["y"])) for box in boxes}) == 300, "no task hides another"


def test_breaker_is_reset_and_queue_paused_and_resumed(page: Page, site: Site) -> None:
    page.goto("/protection")
    row = page.get_by_role("region", name="Circuit breakers").locator("tr", has_text="research")
    row.get_by_role("button", name="Open").click()
    expect(row.get_by_role("button", name="Reset")).to_be_visible()
    row.get_by_role("button", name="Reset").click()
    expect(row.get_by_role("button", name="Open")).to_be_visible()
    page.get_by_role("button", name="Pause …").click()
    page.get_by_label("Reason").fill("lunch")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Everything")).to_be_visible()
    assert call(site, "/api/queue")["paused"]
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Nothing is paused.")).to_be_visible()


def test_agent_is_drained_and_activated(page: Page, site: Site) -> None:
    page.goto("/agents")
    row = page.get_by_role("region", name="Agents").locator("tr", has_text="vera")
    row.get_by_role("button", name="Drain").click()
    expect(row).to_contain_text("Draining")
    row.get_by_role("button", name="Activate").click()
    expect(row).to_contain_text("Active")


def test_trigger_is_fired_and_paused(page: Page, site: Site) -> None:
    page.goto("/triggers")
    row = page.locator("tr", has_text="nightly-audit")
    expect(row).to_contain_text("30 2 * * * Europe/Berlin")
    row.get_by_role("button", name="Fire").click()
    expect(page.locator(".toast")).to_contain_text("nightly-audit fired")
    assert [task["title"] for task in call(site, "/api/tasks?type=audit")["tasks"]].count("Nightly audit") == 1
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()


def test_every_page_is_usable_by_keyboard(page: Page) -> None:
    page.goto("/")
    expect(page.locator("h1")).to_have_text("Overview")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.locator("h1")).to_have_text("Tasks")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/tasks/task_"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("place", ["title", "payload"])
def test_agent_text_is_never_rendered_as_html(page: Page, site: Site, heard: Heard, place: str) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    fields: dict[str, Any] = {"title": evil} if place == "title" else {"title": "harmless", "payload": {"evil": evil}}
    task_id = submit(site, type="evil", **fields)
    page.on("dialog", lambda dialog: heard.complaints.append(dialog.message))
    page.goto(f"/tasks/{task_id}")
    expect(page.locator("main")).to_contain_text("onerror=alert(1)")
    assert page.locator("main img, main script").count() == 0


def test_refused_action_is_shown_with_its_reason(page: Page, site: Site, heard: Heard) -> None:
    heard.refusal = "409"
    task_id = submit(site, type="gone", title="Gone before you click")
    page.goto(f"/tasks/{task_id}")
    expect(page.get_by_role("button", name="Priority")).to_be_visible()
    page.get_by_role("button", name="Priority").click()
    page.get_by_role("spinbutton").fill("3")
    call(site, f"/api/tasks/{task_id}/cancel", {})
    page.get_by_role("button", name="Change").click()
    expect(page.locator(".toast.bad")).to_contain_text("cancelled")


def claim_one(site: Site, agent: str, type_: str) -> dict[str, Any]:
    claimed: dict[str, Any] = call(site, "/api/tasks/claim", {"agent_id": agent, "types": [type_], "start": True})
    return claimed["assignments"][0]  # type: ignore[no-any-return]  # JSON


def test_overview_explains_why_nothing_runs(page: Page, site: Site) -> None:
    quiet = "workspace=quiet"
    call(site, f"/api/tasks?{quiet}", {"type": "fly_by_wire", "title": "Fly to the moon"})
    page.goto(f"/?{quiet}")
    expect(page.get_by_role("region", name="Running now")).to_contain_text("Work waits, but nothing is running")
    panel = page.get_by_role("region", name="Why work waits")
    expect(panel).to_contain_text("1 task: no registered agent can take it: it needs type fly_by_wire")
    call(site, f"/api/agents?{quiet}", {"id": "neil"})
    call(site, f"/api/cooldowns/type:fly_by_wire?{quiet}", {"seconds": 900, "reason": "429"}, "PUT")
    expect(panel).to_contain_text("in 14 min", timeout=20_000)
    expect(panel).not_to_contain_text("no registered agent")


def test_task_page_shows_the_log(page: Page, site: Site) -> None:
    task = submit(site, type="chatty", title="Talk")
    token = claim_one(site, "parrot", "chatty")["token"]
    path = f"/api/tasks/{task}"
    call(
        site,
        f"{path}/logs",
        {"token": token, "lines": [{"text": "hello"}, {"text": "<b>careful</b>", "level": "warning"}]},
    )
    page.goto(f"/tasks/{task}")
    log = page.get_by_role("region", name="Log")
    expect(log.get_by_role("listitem")).to_have_text(
        ["attempt 1 by parrot", re.compile("hello"), re.compile("<b>careful</b>")]
    )
    call(site, f"{path}/messages", {"token": token, "kind": "tool_call", "text": "ls -l"})
    expect(log).to_contain_text("ls -l", timeout=20_000)


def test_questions_count_as_waiting_approvals(page: Page, site: Site) -> None:
    page.goto("/approvals")
    cards = page.get_by_role("article")
    expect(cards.first).to_be_visible()
    before = cards.count()
    submit(site, type="ask_me", title="Choose a colour")
    token = claim_one(site, "painter", "ask_me")["token"]
    schema = {"type": "object", "required": ["sure"], "properties": {"sure": {"type": "boolean", "title": "Sure"}}}
    task_id = token.rpartition(".")[0]
    asked = {"token": token, "name": "colour", "question": "Blue?", "schema": schema}
    call(site, f"/api/tasks/{task_id}/wait", asked)
    expect(page.locator("nav li", has_text="Approvals").locator(".badge")).to_have_text(str(before + 1))
    card = page.get_by_role("article", name="Choose a colour")
    card.get_by_role("button", name="Answer").click()
    expect(card).to_be_visible()  # nothing was chosen, so nothing is answered
    assert call(site, f"/api/tasks/{task_id}")["status"] == "pending"
    card.get_by_label("Sure").select_option("No")
    card.get_by_role("button", name="Answer").click()
    expect(card).to_have_count(0)


def test_names_in_explanations_keep_their_underscores(page: Page, site: Site) -> None:
    first = submit(site, type="dig_deep", title="Dig")
    second = submit(site, type="dig_deep", title="Fill", dependencies=[first])
    page.goto(f"/tasks/{second}")
    expect(page.locator(".why")).to_contain_text(f"It waits for {first}")
    assert page.locator(".why").inner_text().count(first) == 1


def test_output_of_a_refused_attempt_is_not_shown_as_waiting(page: Page, site: Site) -> None:
    task_id = submit(site, type="guess", title="Guess", max_attempts=2)
    token = claim_one(site, "guesser", "guess")["token"]
    call(site, f"/api/tasks/{task_id}/fail", {"token": token, "reason": "crash", "error": "wrong"})
    page.goto(f"/tasks/{task_id}")
    expect(page.get_by_label("Attempts")).to_contain_text("Failed")
    expect(page.locator("main")).not_to_contain_text("awaiting validation")
