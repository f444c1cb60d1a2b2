"""People of the agent factory at the dashboard: they ask for work, and are notified of what needs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Site
from tests.dashboard.test_flows import call, submit


@pytest.mark.requirement("F-202")
def test_task_submitted_on_the_dashboard_equals_one_over_http(page: Page, site: Site) -> None:
    page.goto("/tasks")
    page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type").fill("code")
    dialog.get_by_label("Title").fill("Build a landing page for X")
    dialog.get_by_label("Prompt").fill("One page, with a form.")
    dialog.get_by_label("Priority").fill("20")
    dialog.get_by_label("Your name").fill("adam")
    dialog.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/tasks/task_"))
    expect(page.locator("h1")).to_have_text("Build a landing page for X")
    expect(page.get_by_label("About")).to_contain_text("by human:adam")
    by_hand = call(site, f"/api/tasks/{page.url.rpartition('/')[2]}")
    assert (by_hand["type"], by_hand["priority"], by_hand["status"]) == ("code", 20, "ready")
    assert by_hand["spec"]["prompt"] == "One page, with a form."
    over_http = call(site, f"/api/tasks/{submit(site, title='Build another', created_by='human:eve')}")
    assert (by_hand["created_by"], over_http["created_by"]) == ("human:adam", "human:eve")


@contextmanager
def receiver(got: SimpleQueue[Any]) -> Iterator[str]:
    """Yield the address of a web server that stores its requests."""

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # the name is the library's
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.requirement("F-196")
def test_dead_letter_alerts_on_the_dashboard_and_in_the_sink(page: Page, site: Site) -> None:
    output: SimpleQueue[Any] = SimpleQueue()
    with receiver(output) as address:
        sink = {"name": "people", "kind": "slack", "address": address, "allow_private": True}
        call(site, "/api/sinks", {**sink, "wants": {"alerts": ["dead_lettered"], "types": ["doomed"]}})
        page.goto("/alerts")
        expect(page.locator(".stream")).to_have_text("Live")
        task_id = submit(site, type="doomed", max_attempts=1)
        claim = {"agent_id": "d", "types": ["doomed"], "start": True}
        held = call(site, "/api/tasks/claim", claim)["assignments"][0]
        call(site, f"/api/tasks/{task_id}/fail", {"token": held["token"], "reason": "crash", "error": "boom"})
        message = f"Task {task_id} moved to dead letter queue"
        expect(page.locator("tr", has_text=message)).to_be_visible()
        assert output.get(timeout=60) == {"text": f"[warning] {message}"}


def test_new_task_of_a_registered_type_asks_for_its_payload(page: Page, site: Site) -> None:
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "words": {"type": "integer", "minimum": 1},
            "style": {"anyOf": [{"enum": ["short", "long"]}, {"type": "null"}], "default": None},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    call(site, "/api/types/summarise", {"payload_schema": schema}, "PUT")
    try:
        page.goto("/tasks")
        page.get_by_role("button", name="New task").click()
        page.get_by_label("Type").last.fill("summarise")
        page.get_by_label("Title").fill("Sum it up")
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("heading", name="Payload of summarise")).to_be_visible()
        page.get_by_label("Text").fill("Once upon a time")
        page.get_by_label("Words").fill("3")
        page.get_by_label("Style").select_option("short")
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("heading", name="Sum it up")).to_be_visible()
        made = call(site, "/api/tasks?type=summarise")["tasks"]
        assert [task["payload"] for task in made] == [{"text": "Once upon a time", "words": 3, "style": "short"}]
    finally:
        call(site, "/api/types/summarise", method="DELETE")


def test_instruction_is_sent_from_the_task_page_and_shown_as_its_agent_gets_it(page: Page, site: Site) -> None:
    task_id = submit(site, type="steered", title="Paint the shed")
    held = call(site, "/api/tasks/claim", {"agent_id": "painter", "types": ["steered"], "start": True})["assignments"][
        0
    ]
    page.goto(f"/tasks/{task_id}")
    panel = page.get_by_label("Instructions", exact=True)
    box = panel.get_by_label("Instruction", exact=True)
    expect(box).to_have_attribute("placeholder", "Instruction to painter")
    box.fill("Use the <b>blue</b> paint.")
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator("li")).to_contain_text("Use the <b>blue</b> paint.")
    expect(panel.locator("li .chip")).to_have_text("waiting")
    expect(box).to_have_value("")
    box.fill("half a")  # kept while the page changes below
    said = call(site, f"/api/tasks/{task_id}/heartbeat", {"token": held["token"]})["instructions"]
    assert [each["text"] for each in said] == ["Use the <b>blue</b> paint."]
    expect(panel.locator("li .chip")).to_have_text("delivered")
    call(site, f"/api/tasks/{task_id}/inbox/acknowledge", {"token": held["token"], "seq": 1})
    expect(panel.locator("li .chip")).to_have_text("acknowledged")
    expect(box).to_have_value("half a")
    call(site, f"/api/tasks/{task_id}/complete", {"token": held["token"]})
    expect(box).to_have_count(0)
