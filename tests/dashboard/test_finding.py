"""Tasks are searched, selected and changed in bulk in a browser."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Heard, Site
from tests.dashboard.test_flows import call, claim_one, submit


def test_search_box_finds_tasks_by_words(page: Page, site: Site) -> None:
    submit(site, type="finding", title="Flaky login on Tuesday", payload={"browser": "netscape"})
    submit(site, type="finding", title="Steady logout")
    page.goto("/agents")
    expect(page.locator("h1")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("flaky login")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("search=flaky"))
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("link", name="Flaky login on Tuesday")).to_be_visible()
    page.get_by_role("searchbox").fill("netscape")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_search_without_result_says_so(page: Page) -> None:
    page.goto("/tasks")
    page.get_by_role("searchbox").fill("nothing like this")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No task matches “nothing like this”.")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("tbody tr").first).to_be_visible()


def test_search_box_opens_a_task_by_its_short_id(page: Page, site: Site, heard: Heard) -> None:
    heard.refusal = "404"  # of a word that could be an id
    task = submit(site, title="Found by its end")
    page.goto("/tasks")
    page.get_by_role("searchbox").fill(f"…{task[-6:]}")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(task))
    page.goto(f"/tasks/{task[-8:]}")
    expect(page.get_by_role("heading", name="Found by its end")).to_be_visible()
    page.goto("/tasks")
    page.get_by_role("searchbox").fill("ZZZZZZZ")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No task matches “ZZZZZZZ”.")).to_be_visible()


def test_state_chips_count_within_the_other_filters(page: Page, site: Site) -> None:
    for _ in range(3):
        submit(site, type="chips")
    call(site, f"/api/tasks/{submit(site, type='chips')}/cancel", {})
    page.goto("/tasks?type=chips")
    expect(page.get_by_role("button", name="Ready 3")).to_be_visible()
    expect(page.get_by_role("button", name="Cancelled 1")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Running"))).to_have_count(0)


def test_selected_tasks_are_cancelled_after_a_count(page: Page, site: Site) -> None:
    made = [submit(site, type="ticked", title=f"Ticked {n}") for n in range(4)]
    call(site, f"/api/tasks/{made[3]}/cancel", {})
    page.goto("/tasks?type=ticked")
    for n in (0, 1, 3):
        page.get_by_label(f"Select Ticked {n}").check()
    expect(page.get_by_text("3 selected")).to_be_visible()
    page.get_by_role("toolbar").get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("heading", name="Cancel 2 tasks?")).to_be_visible()
    expect(page.get_by_text("1 other cannot")).to_be_visible()
    page.get_by_label("Reason").fill("enough")
    page.get_by_role("button", name="Cancel 2 tasks").click()
    expect(page.get_by_text("2 cancelled.")).to_be_visible()
    assert [call(site, f"/api/tasks/{each}")["status"] for each in made] == [
        "cancelled",
        "cancelled",
        "ready",
        "cancelled",
    ]
    assert call(site, f"/api/tasks/{made[0]}")["cancel_reason"] == "enough"
    expect(page.get_by_role("toolbar")).to_have_count(0)


def test_all_matching_tasks_are_changed_page_by_page(page: Page, site: Site) -> None:
    call(site, "/api/tasks", [{"type": "mass", "title": f"Mass {n}"} for n in range(230)])
    page.goto("/tasks?type=mass&status=ready")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_label("Select all on this page").check()
    expect(page.get_by_text("50 selected")).to_be_visible()
    page.get_by_role("button", name="Select all matching tasks").click()
    page.get_by_role("toolbar").get_by_role("button", name="Set priority").click()
    expect(page.get_by_role("heading", name="Set the priority of 230 tasks?")).to_be_visible()
    page.get_by_role("spinbutton").fill("7")
    page.get_by_role("button", name="Change 230 tasks").click()
    expect(page.get_by_text("230 changed.")).to_be_visible()
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Select all matching tasks").click()
    page.get_by_role("toolbar").get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel 230 tasks").click()
    expect(page.get_by_text("230 cancelled.")).to_be_visible()
    assert call(site, "/api/counts?type=mass")["counts"] == {"cancelled": 230}
    assert {task["priority"] for task in call(site, "/api/tasks?type=mass&limit=300")["tasks"]} == {7}


def test_selection_is_forgotten_with_other_filters(page: Page, site: Site) -> None:
    submit(site, type="forgotten", title="Tick me")
    page.goto("/tasks?type=forgotten")
    page.get_by_label("Select Tick me").check()
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Ready")).click()
    expect(page.get_by_role("toolbar")).to_have_count(0)


def test_dead_letter_is_reviewed_on_its_own_page(page: Page, site: Site) -> None:
    task = submit(site, type="doomed-here", title="Doomed", max_attempts=1, payload={"n": 1})
    token = claim_one(site, "undertaker", "doomed-here")["token"]
    call(site, f"/api/tasks/{task}/fail", {"token": token, "reason": "agent_error", "error": "boom"})
    page.goto(f"/tasks/{task}")
    for name in ("Retry", "Change and retry", "Abandon", "Cancel", "Escalate"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    page.get_by_role("button", name="Change and retry").click()
    page.get_by_role("dialog").get_by_label("Payload").fill('{"n": 2}')
    page.get_by_role("dialog").get_by_role("button", name="Change and retry").click()
    expect(page.locator(".heading .chip")).to_have_text("Ready")
    assert call(site, f"/api/tasks/{task}")["payload"] == {"n": 2}
