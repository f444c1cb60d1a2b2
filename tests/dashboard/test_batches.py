"""The pages of batches: the state and cost of each batch, and the outcome of its tasks."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Site
from tests.dashboard.test_flows import call


def test_batches_show_provider_model_state_tasks_times_and_cost(page: Page, site: Site) -> None:
    cost = call(site, "/api/batches?status=ended")["batches"][0]["cost_usd"]
    assert cost > 0
    page.goto("/batches")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    answered = rows.filter(has_text="openai")
    expect(answered.locator("td")).to_have_text(
        ["Ended", re.compile("openai"), "gpt-4.1", re.compile("3/3"), re.compile("ago"), "\u2013", f"${cost:.4f}"]
    )
    waiting = rows.filter(has_text="anthropic")
    expect(waiting.locator("td")).to_have_text(
        ["Posted", re.compile("anthropic"), "claude-sonnet-4-5", re.compile("0/2"), re.compile("ago"),
         re.compile("in 2[0-9] h"), "$0.00"]
    )  # fmt: skip


def test_batches_can_be_filtered_by_state(page: Page) -> None:
    page.goto("/batches")
    page.get_by_role("button", name="Posted").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile("status=posted"))
    page.get_by_role("button", name="Gathered").click()
    expect(page.locator("main")).to_contain_text("No batch is in this state.")


def test_batch_page_shows_the_outcome_of_its_tasks(page: Page) -> None:
    page.goto("/batches")
    page.locator("tbody tr").filter(has_text="openai").get_by_role("link").click()
    expect(page.get_by_label("About")).to_contain_text("gpt-4.1")
    answers = page.get_by_role("group", name="Tasks of the batch").locator("tbody tr")
    expect(answers).to_have_count(3)
    expect(answers.filter(has_text="Failed")).to_have_count(1)
    expect(answers.filter(has_text="Completed")).to_have_count(2)
    answers.first.get_by_role("link").click()
    expect(page).to_have_url(re.compile("/tasks/task_"))
