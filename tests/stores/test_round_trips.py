"""How often a verb asks PostgreSQL, in a queue that uses nothing special: each time costs more than what is asked."""

from collections.abc import Awaitable

import asyncpg
import pytest

from shiftwork import Queue
from tests.services.postgres import Databases

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


async def test_a_verb_asks_no_more_often_than_it_must(
    postgres: Databases, migrated_template: str, sent: list[str]
) -> None:
    name = postgres.create_database(migrated_template)
    asked: dict[str, int] = {}

    async def count(verb: str, call: Awaitable[object]) -> object:
        sent.clear()
        answer = await call
        asked[verb] = len([text for text in sent if not text.startswith("notify")])
        return answer

    async with await Queue.open(postgres.dsn(name)) as queue:
        await queue.register_agent(id="ada", max_concurrent_tasks=5)
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
    postgres.drop_database(name)
    assert asked == {
        "submit": 1,
        "claim": 6,
        "claim in vain": 4,
        "start": 4,
        "heartbeat": 5,
        "complete": 6,
        "fail": 13,
        "get": 4,
    }
