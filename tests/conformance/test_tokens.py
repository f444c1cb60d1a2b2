"""Tokens: created once, found by their secret only, refused when expired or revoked."""

import hashlib
import logging
import re
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.access.operations import find_token
from shiftwork.model.errors import InputError, NotFound
from shiftwork.testing import MovedClock
from tests.conformance.steps import everything, sql

SECRET = re.compile(r"sw_([0-9a-z]{12})_[A-Za-z0-9_-]{43}")


async def test_token_is_found_by_its_secret(queue: Queue, clock: MovedClock) -> None:
    made = await queue.as_caller("human:ada").tokens.create("ci", ["work", "submit"], expires_at=clock() + 60)
    match = SECRET.fullmatch(made.secret)
    assert match is not None
    assert match[1] == made.id
    assert (made.name, made.workspace_id, made.scopes) == ("ci", "default", ["submit", "work"])
    assert (made.created_at, made.created_by, made.expires_at) == (clock(), "human:ada", clock() + 60)
    found = await find_token(queue.engine, made.secret)
    assert found is not None
    assert found.status == "active"
    seen = ("id", "name", "workspace_id", "scopes", "created_at", "created_by", "expires_at")
    assert all(getattr(found, field) == getattr(made, field) for field in seen)


async def test_every_token_has_a_different_secret(queue: Queue) -> None:
    made = [await queue.tokens.create("ci", ["read"]) for _ in range(20)]
    assert len({token.secret for token in made}) == len({token.id for token in made}) == 20


async def test_only_the_hash_of_a_secret_is_stored(queue: Queue) -> None:
    made = await queue.tokens.create("ci", ["admin"])
    kept = await everything(queue)
    assert made.id in str(kept)
    assert made.secret not in str(kept)
    assert made.secret[-43:] not in str(kept)
    (row,) = await sql(queue, "select hash from tokens")
    assert row["hash"] == hashlib.sha256(made.secret.encode()).hexdigest()
    assert row["hash"] not in str(kept["events"])


async def test_secret_is_never_logged(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = await queue.tokens.create("ci", ["read"])
    await find_token(queue.engine, made.secret)
    logging.getLogger("shiftwork").info("made %r", made)
    assert made.id in caplog.text
    assert made.secret[-43:] not in caplog.text


async def test_altered_secret_matches_no_token(queue: Queue) -> None:
    secret = (await queue.tokens.create("ci", ["read"])).secret
    other = (await queue.tokens.create("ci", ["read"])).secret
    last = "a" if secret[-1] != "a" else "b"
    wrong = [secret[:-1] + last, secret[:-1], secret + "x", secret.upper(), secret + "\n", "sw_", "", "é" * 59]
    wrong += [other[:16] + secret[16:], f"sw_{'0' * 12}_{secret[-43:]}", "Bearer " + secret, secret.replace("sw_", "")]
    assert [await find_token(queue.engine, text) for text in wrong] == [None] * len(wrong)
    assert await find_token(queue.engine, secret) is not None


async def test_token_is_found_from_every_workspace_and_listed_in_its_own(queue: Queue) -> None:
    other = queue.in_workspace("other")
    made = await other.tokens.create("ci", ["read"])
    found = await find_token(queue.engine, made.secret)
    assert found is not None
    assert found.workspace_id == "other"
    assert await queue.tokens.list() == []
    assert [token.id for token in await other.tokens.list()] == [made.id]
    assert "other" in {row["name"] for row in await sql(queue, "select name from workspaces")}


async def test_expired_token_is_not_found(queue: Queue, clock: MovedClock) -> None:
    made = await queue.tokens.create("ci", ["read"], expires_at=clock() + 60)
    clock.advance(59)
    assert await find_token(queue.engine, made.secret) is not None
    clock.advance(1)
    assert await find_token(queue.engine, made.secret) is None
    assert [token.status for token in await queue.tokens.list()] == ["expired"]


async def test_revoked_token_is_not_found(queue: Queue, clock: MovedClock) -> None:
    made = await queue.tokens.create("ci", ["read"], expires_at=clock() + 60)
    clock.advance(5)
    kept = await queue.tokens.create("cd", ["read"])
    revoked = await queue.tokens.revoke(made.id)
    assert (revoked.id, revoked.status, revoked.revoked_at) == (made.id, "revoked", clock())
    assert await find_token(queue.engine, made.secret) is None
    assert await find_token(queue.engine, kept.secret) is not None
    clock.advance(100)
    assert [token.status for token in await queue.tokens.list()] == ["revoked", "active"]


async def test_token_is_revoked_only_once(queue: Queue, clock: MovedClock) -> None:
    made = await queue.tokens.create("ci", ["read"])
    first = await queue.tokens.revoke(made.id)
    clock.advance(5)
    assert await queue.tokens.revoke(made.id) == first
    events = (await queue.events()).events
    assert [event.verb for event in events] == ["token_created", "token_revoked"]


async def test_token_events_name_the_actor(queue: Queue, clock: MovedClock) -> None:
    made = await queue.as_caller("human:ada", "r-1").tokens.create("ci", ["work"], expires_at=clock() + 60)
    await queue.as_caller("human:bob", "r-2").tokens.revoke(made.id)
    created, revoked = (await queue.events()).events
    assert (created.names, created.actor, created.request_id) == (["token.created"], "human:ada", "r-1")
    assert created.data == {"token": made.id, "name": "ci", "scopes": ["work"], "expires_at": clock() + 60}
    assert (revoked.names, revoked.actor, revoked.request_id) == (["token.revoked"], "human:bob", "r-2")
    assert revoked.data == {"token": made.id, "name": "ci"}


async def test_token_of_another_workspace_cannot_be_revoked(queue: Queue) -> None:
    made = await queue.tokens.create("ci", ["read"])
    for token_id in (made.id, "0" * 12):
        with pytest.raises(NotFound):
            await queue.in_workspace("other").tokens.revoke(token_id)
    assert await find_token(queue.engine, made.secret) is not None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"scopes": ["work", "root"]}, "scopes[1]"),
        ({"scopes": "work"}, "scopes"),
        ({"scopes": [7]}, "scopes[0]"),
        ({"name": ""}, "name"),
        ({"name": "a" * 256}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": 7}, "name"),
        ({"expires_at": 0}, "expires_at"),
        ({"expires_at": float("nan")}, "expires_at"),
        ({"expires_at": float("inf")}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
    ],
    ids=str,
)
async def test_invalid_token_terms_are_refused(queue: Queue, change: dict[str, Any], where: str) -> None:
    terms: dict[str, Any] = {"name": "ci", "scopes": ["work"], "expires_at": None, **change}
    with pytest.raises(InputError) as refused:
        await queue.tokens.create(terms["name"], terms["scopes"], expires_at=terms["expires_at"])
    assert (refused.value.where or "").replace(".", "") == where
    assert await queue.tokens.list() == []


async def test_token_expiring_now_is_refused(queue: Queue, clock: MovedClock) -> None:
    with pytest.raises(InputError):
        await queue.tokens.create("ci", ["read"], expires_at=clock())


async def test_scope_named_twice_counts_once(queue: Queue) -> None:
    assert (await queue.tokens.create("ci", ["work", "read", "work"])).scopes == ["read", "work"]
