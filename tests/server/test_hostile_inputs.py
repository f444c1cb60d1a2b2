"""One client sends everything that could block a server, while another works and is always answered."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from tests.adversarial import SCHEMAS, VALIDATED
from tests.server import processes

PATIENCE = aiohttp.ClientTimeout(total=60)
"""How long an answer may take on a busy machine; what hangs takes forever."""
MIN_ROUNDS = 20
_JSON = {"content-type": "application/json"}
BLANKS = " " * 60_000
DOUBLING = SCHEMAS[0](3_200)
STORED = ("stored schema", "stored pattern")


class Caller:
    """Sends requests, each of which must be answered, whatever the answer is."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.answers: list[int] = []
        self.astray: list[str] = []
        """Requests that did not reach what they were meant for."""

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self.session.request(method, path, data=sent, headers={**_JSON, **headers}) as answer:
            self.answers.append(answer.status)
            if answer.status in {401, 403, 404, 405, 415}:
                self.astray.append(f"{answer.status} {method} {path[:80]}")
            assert answer.status < 500, f"{answer.status} for {method} {path}: {(await answer.text())[:300]}"
            return await answer.json() if "json" in answer.content_type else await answer.read()

    async def take(self, type_: str) -> str | None:
        """The token of a task of this type, if there is one."""
        claim = {"agent_id": f"{type_} {len(self.answers)}", "types": [type_], "start": True}
        found = (await self.send("POST", "/api/tasks/claim", claim))["assignments"]
        return found[0]["token"] if found else None

    async def submit_output(self, token: str, data: Any) -> Any:
        body = {"token": token, "data": data}
        return await self.send("POST", f"/api/tasks/{token.partition('.')[0]}/complete", body)


async def attack(caller: Caller) -> None:
    await _schemas(caller)
    await _patterns(caller)
    await _triggers(caller)
    await _texts(caller)
    for type_ in STORED:
        token = await caller.take(type_)
        assert token is not None
        await caller.submit_output(token, "a" * 30_000 + "!")


async def _schemas(caller: Caller) -> None:
    def asking(schema: Any) -> dict[str, Any]:
        return {
            "type": "hostile",
            "output": {"validation": "json-schema", "validation_schema": schema},
            "max_attempts": 1,
        }

    refused = await caller.send("POST", "/api/tasks", asking(DOUBLING))
    assert refused["code"] == "invalid_input"
    assert refused["where"] == "output.validation_schema"
    for make in SCHEMAS:
        await caller.send("POST", "/api/tasks", asking(make(32_000)))
    distinct = [asking({**SCHEMAS[4](60_000), "title": str(number)}) for number in range(20)]
    await caller.send("POST", "/api/tasks", distinct)
    while await caller.take("hostile") is not None:
        pass
    for schema, make in VALIDATED:
        await caller.send("POST", "/api/tasks", asking(schema))
        token = await caller.take("hostile")
        if token is not None:
            await caller.submit_output(token, make(100_000))
    await caller.send("POST", "/api/tasks", {"type": "asking"})
    token = await caller.take("asking")
    assert token is not None
    question = {"token": token, "name": "q", "question": "Which?", "schema": DOUBLING}
    await caller.send("POST", f"/api/tasks/{token.partition('.')[0]}/wait", question)


async def _patterns(caller: Caller) -> None:
    for pattern in (r"\w" * 30_000, "(a{1,900}){1,900}", "[ab]*a[ab]{100}c", "(a+)+$", "a" + ".?" * 400 + "!"):
        output = {"validation": "regex", "validation_schema": pattern}
        await caller.send("POST", "/api/tasks", {"type": "matched", "output": output, "max_attempts": 1})
        token = await caller.take("matched")
        if token is not None:
            await caller.submit_output(token, "aababbab" * 100_000)


async def _triggers(caller: Caller) -> None:
    task = {"type": "triggered", "title": "{{" + BLANKS}
    for name, on in {
        "template": {"kind": "hook"},
        "file": {"kind": "file", "pattern": "*?" * 14 + "Z"},
        "folders": {"kind": "file", "pattern": "***/" * 200 + "Z"},
        "dag": {"kind": "dag", "title": "*a" * 400 + "b"},
        "cron": {"kind": "cron", "at": "* * 29 2 1#5", "zone": "America/New_York"},
    }.items():
        await caller.send("PUT", f"/api/triggers/{name}", {"on": on, "task": task})
        await caller.send("POST", f"/api/triggers/{name}/preview", {})
    never = {"kind": "cron", "at": "* * 31 2 *"}
    await caller.send("PUT", "/api/triggers/never", {"on": never, "task": task})
    large = {"on": {"kind": "hook"}, "task": {"type": "x", "payload": {"all": ["{{ a }}"] * 20_000}}}
    await caller.send("PUT", "/api/triggers/large", {**large, "parameters": {"a": {"default": "x"}}})
    await caller.send("POST", "/api/triggers/large/preview", {"parameters": {"a": "x" * 500_000}})
    await caller.send("POST", "/api/dags", {"title": "a" * 60_000, "tasks": [{"type": "x"}]})


async def _texts(caller: Caller) -> None:
    await caller.send("PATCH", "/api/settings", {"set": {"retry": {"a" * 1_000_000: 1}}})
    await caller.send("PATCH", "/api/settings", {"set": {"max_attempts": 10**400}})
    await caller.send("POST", "/api/tasks", {"type": "x", "settings": {"retry.max_delay_sec" * 50_000: 1}})
    await caller.send("PUT", "/api/breakers/config", {"overrides": {"a" * 200_000: {}}})
    await caller.send("PUT", "/api/cooldowns/" + "model%3A" + "a" * 3_000, {"seconds": 1})
    for error in ("retry-after" + BLANKS, "eyJ-" * 15_000, "/a" * 30_000, '{"type":"' * 7_000):
        await caller.send("POST", "/api/tasks", {"type": "failing", "max_attempts": 1})
        token = await caller.take("failing")
        assert token is not None
        body = {"token": token, "reason": "crash", "error": error}
        await caller.send("POST", f"/api/tasks/{token.partition('.')[0]}/fail", body)
    many = {str(number): [str(number + 1), str(number * 7 % 900)] for number in range(900)}
    tasks = [{"type": "x", "key": key, "dependencies": above} for key, above in many.items()]
    await caller.send("POST", "/api/dags", {"tasks": tasks})
    await caller.send("GET", "/api/tasks?limit=" + "9" * 4_000)
    await caller.send("GET", "/api/tasks", **{"accept-encoding": "gzip;q=0." + "0" * 4_000 + "x"})
    await caller.send("GET", "/api/events?after=" + "9" * 4_000)


async def work(caller: Caller, done: asyncio.Event) -> list[str]:
    """Submit, claim and complete, until the other is done; the tasks that were completed."""
    completed: list[str] = []
    while not done.is_set() or len(completed) < MIN_ROUNDS:
        await caller.send("GET", "/healthz")
        made = await caller.send("POST", "/api/tasks", {"type": "honest", "payload": {"round": len(completed)}})
        token = await caller.take("honest")
        assert token is not None
        await caller.submit_output(token, {"answer": 42})
        completed.append(made["id"])
    return completed


@pytest.fixture
async def stored(store_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that holds what was accepted before anything refused it."""
    async with Queue.open(store_url) as queue:
        with monkeypatch.context() as before:
            before.setattr("shiftwork.validation.policy.check_output", lambda _: None)
            for type_, method, asked in zip(STORED, ("json-schema", "regex"), (DOUBLING, r"\w" * 20_000), strict=True):
                output = {"validation": method, "validation_schema": asked}
                await queue.submit(type=type_, output=output, max_attempts=1)
    return store_url


async def test_server_answers_other_clients_during_hostile_input(stored: str, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / ("a" * 34)).write_text("a name that patterns of many stars do not fit")
    async with await processes.start(stored, "--watch", str(watched)) as server:
        done = asyncio.Event()
        # A connection each time: on a busy machine the server may close an idle one just as it is used again.
        fresh = aiohttp.TCPConnector(force_close=True)
        async with (
            aiohttp.ClientSession(server.url, timeout=PATIENCE) as one,
            aiohttp.ClientSession(server.url, timeout=PATIENCE, connector=fresh) as other,
        ):
            hostile, honest = Caller(one), Caller(other)
            working = asyncio.create_task(work(honest, done))
            try:
                await attack(hostile)
            finally:
                done.set()
                completed = await working
            assert set(honest.answers) <= {200, 201}
            assert hostile.astray == []
            for task_id in completed:
                assert (await honest.send("GET", f"/api/tasks/{task_id}"))["status"] == "completed"
        assert await server.stop() == 0
