"""The number of PostgreSQL round trips per verb in a queue without special features."""

from collections.abc import Awaitable

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.reports import Completion
from shiftwork.settings import cache
from shiftwork.store import postgres_notify
from shiftwork.store.postgres_schema import channels
from tests.services.postgres import Databases
from tests.worker.steps import until

SENDERS = "execute", "fetch", "fetchrow", "copy_records_to_table"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to the server, in order."""
    texts: list[str] = []

    def heard(name: str) -> None:
        real = getattr(asyncpg.Connection, name)

        async def send(self: asyncpg.Connection, text: str, *values: object, **options: object) -> object:
            texts.append(text)
            return await real(self, text, *values, **options)

        monkeypatch.setattr(asyncpg.Connection, name, send)

    for name in SENDERS:
        heard(name)
    return texts


@pytest.fixture(autouse=True)
def _settings_stay_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep settings cached: on a busy machine, the second after which they are reread may pass during a test."""
    monkeypatch.setattr(cache, "FRESH_SEC", 3600.0)
    monkeypatch.setattr("shiftwork.budgets.allocator.FRESH_SEC", 3600.0)


async def test_each_verb_uses_its_minimum_of_round_trips(
    postgres: Databases, migrated_template: str, sent: list[str]
) -> None:
    name = postgres.create_database(migrated_template)
    asked: dict[str, int] = {}

    async def count(verb: str, call: Awaitable[object]) -> object:
        sent.clear()
        answer = await call
        asked[verb] = len([text for text in sent if not text.startswith("notify")])
        return answer

    async with Queue.open(postgres.dsn(name)) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=5)
        for _ in range(2):  # the first time lanes, settings and types are learned
            task = await queue.submit(type="code")
            await count("submit", queue.submit(type="code"))
            held = await queue.claim("ada")
            await count("start", queue.start(held[0].token))
            await count("heartbeat", queue.heartbeat(held[0].token))
            await count("complete", queue.complete(held[0].token, {"ok": True}))
            await queue.claim("ada", start=True)
            await queue.submit(type="code")
            (last,) = await queue.claim("ada", start=True)
            await count("fail", queue.fail(last.token, "invalid_input"))
            await queue.submit(type="code")
            await count("claim", queue.claim("ada", start=True))
            await count("get", queue.get(task.id))
            await count("claim in vain", queue.claim("ada", types=["review"]))
        await queue.submit_dag(
            {"tasks": [{"key": "first", "type": "part"}, {"type": "part", "dependencies": ["first"]}]}
        )
        (member,) = await queue.claim("eve", types=["part"], start=True)
        await count("release in a DAG", queue.release(member.token))
        for verb, call in (("release", queue.release), ("fail and retry", queue.fail)):
            await queue.submit(type="docs")
            (held_now,) = await queue.claim("bob", start=True)
            await count(verb, call(held_now.token, "crash"))
    postgres.drop_database(name)
    assert asked == {
        "submit": 1,
        "claim": 1,
        "claim in vain": 1,
        "start": 1,
        "heartbeat": 1,
        "complete": 1,
        "fail": 7,
        "fail and retry": 5,
        "release": 3,
        "release in a DAG": 3,
        "get": 3,
    }


async def test_batch_of_tasks_is_one_statement(postgres_url: str, sent: list[str]) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")  # settings and lanes are learned
        await until(queue.engine.store._notices.is_quiet)  # type: ignore[attr-defined]  # of this store
        sent.clear()
        await queue.submit_many([{"type": "code", "priority": n % 7, "payload": {"n": n}} for n in range(200)])
        assert [text.partition(" ")[0] for text in sent if not text.startswith("notify")] == ["with"]
        assert (await queue.status()).counts == {"ready": 201}


async def test_idle_submit_notifies_in_its_only_statement(
    postgres_url: str, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_notify, "IDLE_SEC", 0.0)
    heard: list[object] = []
    listener = await asyncpg.connect(postgres_url)
    await listener.add_listener(channels("public")[0], lambda *words: heard.append(words[-1]))
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")  # settings and lanes are learned
        await until(lambda: len(heard) == 1)
        await until(queue.engine.store._notices.is_quiet)  # type: ignore[attr-defined]  # of this store
        sent.clear()
        await queue.submit(type="code")
        assert [text.partition(" ")[0] for text in sent] == ["with"]
        await until(lambda: len(heard) == 2)
        assert heard[0] == heard[1]
        monkeypatch.setattr(postgres_notify, "IDLE_SEC", 60.0)
        await until(queue.engine.store._notices.is_quiet)  # type: ignore[attr-defined]  # of this store
        sent.clear()
        await queue.submit(type="code")
        await until(lambda: len(heard) == 3)
        assert [text.partition(" ")[0] for text in sent] == ["with", "notify"]
    await listener.close()


async def test_batch_of_standalone_tasks_completes_in_two_statements_and_a_commit(
    postgres_url: str, sent: list[str]
) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=10)
        await queue.submit_many([{"type": "code"}] * 20)
        for _ in range(2):  # the first time settings are learned
            held = await queue.claim("ada", 10, start=True)
            sent.clear()
            await queue.batch.complete([Completion(token=each.token) for each in held])
        assert [text.partition(" ")[0] for text in sent] == ["with", "with", "commit"]
