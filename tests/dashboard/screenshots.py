"""Writes pictures of the main pages: `make screenshots`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Browser, expect

from tests.dashboard.conftest import Site, finish, make, opened_browser, served

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
WIDE = {"width": 1360, "height": 860}
NARROW = {"width": 400, "height": 860}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/queue.db"
        finish(make(store))
        with served(store) as site, opened_browser() as browser:
            for name, path, look in wanted(site):
                take(browser, site, name, path, look)
                sys.stdout.write(f"docs/screenshots/{name}.png\n")


def wanted(site: Site) -> list[tuple[str, str, dict[str, Any]]]:
    dag = ask(site, "/api/dags")["dags"][0]["id"]
    tried = [task for task in ask(site, f"/api/tasks?dag={dag}")["tasks"] if task["failure_history"]]
    return [
        ("overview", "/", {}),
        ("overview-dark", "/", {"color_scheme": "dark"}),
        ("overview-narrow", "/", {"viewport": NARROW}),
        ("tasks", "/tasks", {}),
        ("task", f"/tasks/{tried[0]['id']}", {}),
        ("dag", f"/dags/{dag}", {}),
        ("approvals", "/approvals", {}),
        ("dead-letters", "/dead-letters", {}),
        ("agents", "/agents", {}),
        ("accounts", "/accounts", {}),
        ("costs", "/costs", {}),
        ("batches", "/batches", {}),
        ("protection", "/protection", {}),
        ("triggers", "/triggers", {}),
    ]


def ask(site: Site, path: str) -> Any:
    with urlopen(site.url + path) as answer:  # noqa: S310  # our own server
        return json.load(answer)


def take(browser: Browser, site: Site, name: str, path: str, look: dict[str, Any]) -> None:
    context = browser.new_context(base_url=site.url, **{"viewport": WIDE, "reduced_motion": "reduce", **look})
    page = context.new_page()
    page.goto(path)
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".stream")).to_have_text("Live")
    page.screenshot(path=FOLDER / f"{name}.png")
    context.close()


if __name__ == "__main__":
    main()
