"""`sinks test` and `deliveries`, with a real receiver."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.cli.terminal import Terminal

CONFLICT = 4


class Receiver:
    """A web server in a thread that stores its requests."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/in"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_sink_test_reports_whether_it_arrived(
    terminal: Terminal, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_PRIVATE_SINKS", "1")
    terminal.text("sinks", "add", "ops", receiver.url, "--allow-private")
    assert "arrived" in terminal.text("sinks", "test", "ops")
    assert [got["type"] for got in receiver.got] == ["sink.test"]
    receiver.status = 500
    refused = terminal.run("sinks", "test", "ops")
    assert refused.code == CONFLICT
    assert "has not arrived: it answered 500" in refused.out
    assert "it answered 500" in terminal.text("deliveries", "list", "--status", "pending")
    assert "it answered 500" in terminal.text("sinks", "show", "ops")


def test_private_sink_address_must_be_allowed(terminal: Terminal, receiver: Receiver) -> None:
    refused = terminal.run("sinks", "add", "ops", receiver.url)
    assert "127.0.0.1 is not a public address" in refused.err
    assert terminal.text("sinks") == "no sinks\n"


def test_redeliver_requires_deliveries_or_a_sink(terminal: Terminal) -> None:
    terminal.text("migrate")
    assert "name either deliveries or a --sink" in terminal.run("deliveries", "redeliver").err
