"""Every page opens in a real browser without errors, contacts no other host, and is accessible."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from playwright.sync_api import Browser, Page, expect

from shiftwork import Queue
from tests.dashboard.conftest import Heard, Site, finish, listen, served

PAGES = {
    "/": "Overview",
    "/tasks": "Tasks",
    "/dags": "DAGs",
    "/approvals": "Approvals",
    "/dead-letters": "Dead letters",
    "/agents": "Agents",
    "/accounts": "Accounts",
    "/costs": "Costs",
    "/batches": "Batches",
    "/protection": "Protection",
    "/triggers": "Triggers",
    "/alerts": "Alerts",
    "/workspaces": "Workspaces",
}


def opened(page: Page, path: str, heading: str) -> None:
    page.goto(path)
    expect(page.locator("h1")).to_have_text(heading)
    expect(page.locator(".loading")).to_have_count(0)


@pytest.mark.parametrize(("path", "heading"), PAGES.items(), ids=PAGES.values())
def test_page_opens_and_contacts_no_other_host(page: Page, site: Site, heard: Heard, path: str, heading: str) -> None:
    opened(page, path, heading)
    expect(page.locator("nav [aria-current=page]")).to_contain_text(heading)
    assert {urlsplit(url).netloc for url in heard.asked} == {urlsplit(site.url).netloc}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("path", "heading"), PAGES.items(), ids=PAGES.values())
def test_page_has_no_accessibility_violation(
    browser: Browser, site: Site, path: str, heading: str, scheme: Any
) -> None:
    context = browser.new_context(base_url=site.url, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    opened(page, path, heading)
    found = Axe().run(page)
    context.close()
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(("path", "heading"), PAGES.items(), ids=PAGES.values())
def test_page_fits_a_phone_screen(browser: Browser, site: Site, path: str, heading: str) -> None:
    context = browser.new_context(base_url=site.url, viewport={"width": 390, "height": 800})
    page = context.new_page()
    opened(page, path, heading)
    wider = page.evaluate("document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth")
    context.close()
    assert wider == 0


COLLISIONS = """() => {
  const parts = (cell) => [...cell.childNodes].map((node) => {
    if (node.getBoundingClientRect) return node.getBoundingClientRect();
    const range = document.createRange();
    range.selectNode(node);
    return range.getBoundingClientRect();
  }).filter((box) => box.width);
  return [...document.querySelectorAll("tbody tr")].flatMap((row) => {
    const cells = [...row.cells].map(parts).filter((boxes) => boxes.length);
    return cells.slice(1).filter((boxes, place) => {
      const end = Math.max(...cells[place].map((box) => box.right));
      return Math.min(...boxes.map((box) => box.left)) < end + 4;
    }).map((boxes) => row.textContent);
  });
}"""
OUT_OF_VIEW = """() => [...document.querySelectorAll("nav li a")].filter((link) => {
  const box = link.getBoundingClientRect();
  return box.left < 0 || box.right > innerWidth || box.bottom > innerHeight;
}).map((link) => link.textContent)"""


@pytest.mark.parametrize(("path", "heading"), PAGES.items(), ids=PAGES.values())
def test_table_cells_do_not_overlap(browser: Browser, site: Site, path: str, heading: str) -> None:
    context = browser.new_context(base_url=site.url, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    opened(page, path, heading)
    found = page.evaluate(COLLISIONS)
    context.close()
    assert found == []


@pytest.mark.parametrize("width", [1280, 390])
def test_all_sections_and_badges_are_visible(browser: Browser, site: Site, width: int) -> None:
    context = browser.new_context(base_url=site.url, viewport={"width": width, "height": 800})
    page = context.new_page()
    opened(page, "/", "Overview")
    found = page.evaluate(OUT_OF_VIEW)
    context.close()
    assert found == []


def test_round_times_are_written_without_zeros(page: Page, site: Site) -> None:
    opened(page, "/", "Overview")
    written = page.evaluate("""async () => {
      const { span } = await import("/static/words.js");
      return [3600, 7260, 86400, 90000].map(span);
    }""")
    assert written == ["1 h", "2 h 1 min", "1 d", "1 d 1 h"]


def test_use_of_an_account_is_shown_in_its_unit(page: Page, site: Site) -> None:
    opened(page, "/accounts", "Accounts")
    windows = page.locator("tbody tr")
    expect(windows.filter(has_text="Five hour").first).to_contain_text(" of 2,000,000 tokens")
    expect(windows.filter(has_text="Seven day").first).to_contain_text(" of $200.00")


def test_missing_page_is_reported(page: Page, heard: Heard) -> None:
    heard.refusal = "404"
    page.goto("/tasks/task_00000000000000000000000000")
    expect(page.locator("main")).to_contain_text("there is no task")


def test_pages_are_served_with_a_strict_content_policy(site: Site) -> None:
    with urlopen(Request(site.url + "/")) as answer:  # noqa: S310  # our own server
        headers = answer.headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert b"<script>" not in answer.read()


async def token_for(store: str) -> str:
    async with Queue.open(store) as queue:
        return (await queue.tokens.create("ada", ["read"])).secret


def test_server_with_tokens_accepts_a_sign_in(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, heard: Heard
) -> None:
    store = f"sqlite:///{tmp_path_factory.mktemp('locked') / 'queue.db'}"
    secret = finish(token_for(store))
    with served(store, "--tokens") as locked:
        context = browser.new_context(base_url=locked.url)
        page = context.new_page()
        listen(page, heard)
        page.goto("/tasks")
        page.get_by_label("Token").fill("sw_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".sign-in")).to_be_visible()
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Tasks")
        expect(page.locator(".stream")).to_have_text("Live")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        context.close()
    assert all("401" in complaint for complaint in heard.complaints)
