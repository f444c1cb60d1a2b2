"""Tokens: made once, found by their secret alone, and closed when they expire or are revoked."""

import hashlib
import logging
import re
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError, NotFound
from shiftwork.testing import MovedClock
from tests.conformance.steps import everything, sql

SECRET = re.compile(r"sw_([0-9a-z]{12})_[A-Za-z0-9_-]{43}")


async def test_a_token_is_found_by_its_secret(queue: Queue, clock: MovedClock) -> None:
    made = await queue.as_caller("human:ada").create_token("ci", ["work", "submit"], expires_at=clock() + 60)
    match = SECRET.fullmatch(made.secret)
    assert match is not None
    assert match[1] == made.id
    assert (made.name, made.workspace_id, made.scopes) == ("ci", "default", ["submit", "work"])
    assert (made.created_at, made.created_by, made.expires_at) == (clock(), "human:ada", clock() + 60)
    found = await queue.find_token(made.secret)
    assert found is not None
    assert found.status == "active"
    told = ("id", "name", "workspace_id", "scopes", "created_at", "created_by", "expires_at")
    assert all(getattr(found, field) == getattr(made, field) for field in told)


async def test_secrets_differ(queue: Queue) -> None:
    made = [await queue.create_token("ci", ["read"]) for _ in range(20)]
    assert len({token.secret for token in made}) == len({token.id for token in made}) == 20


async def test_only_the_hash_of_a_secret_is_kept(queue: Queue) -> None:
    made = await queue.create_token("ci", ["admin"])
    kept = await everything(queue)
    assert made.id in str(kept)
    assert made.secret not in str(kept)
    assert made.secret[-43:] not in str(kept)
    (row,) = await sql(queue, "select hash from tokens")
    assert row["hash"] == hashlib.sha256(made.secret.encode()).hexdigest()
    assert row["hash"] not in str(kept["events"])


async def test_a_secret_stands_in_no_log(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = await queue.create_token("ci", ["read"])
    await queue.find_token(made.secret)
    logging.getLogger("shiftwork").info("made %r", made)
    assert made.id in caplog.text
    assert made.secret[-43:] not in caplog.text


async def test_a_secret_with_one_letter_changed_opens_nothing(queue: Queue) -> None:
    secret = (await queue.create_token("ci", ["read"])).secret
    other = (await queue.create_token("ci", ["read"])).secret
    last = "a" if secret[-1] != "a" else "b"
    wrong = [secret[:-1] + last, secret[:-1], secret + "x", secret.upper(), secret + "\n", "sw_", "", "é" * 59]
    wrong += [other[:16] + secret[16:], f"sw_{'0' * 12}_{secret[-43:]}", "Bearer " + secret, secret.replace("sw_", "")]
    assert [await queue.find_token(text) for text in wrong] == [None] * len(wrong)
    assert await queue.find_token(secret) is not None


async def test_a_token_is_found_from_every_workspace_and_listed_in_its_own(queue: Queue) -> None:
    other = queue.in_workspace("other")
    made = await other.create_token("ci", ["read"])
    found = await queue.find_token(made.secret)
    assert found is not None
    assert found.workspace_id == "other"
    assert await queue.tokens() == []
    assert [token.id for token in await other.tokens()] == [made.id]
    assert "other" in {row["name"] for row in await sql(queue, "select name from workspaces")}


async def test_an_expired_token_opens_nothing(queue: Queue, clock: MovedClock) -> None:
    made = await queue.create_token("ci", ["read"], expires_at=clock() + 60)
    clock.advance(59)
    assert await queue.find_token(made.secret) is not None
    clock.advance(1)
    assert await queue.find_token(made.secret) is None
    assert [token.status for token in await queue.tokens()] == ["expired"]


async def test_a_revoked_token_opens_nothing(queue: Queue, clock: MovedClock) -> None:
    made = await queue.create_token("ci", ["read"], expires_at=clock() + 60)
    clock.advance(5)
    kept = await queue.create_token("cd", ["read"])
    revoked = await queue.revoke_token(made.id)
    assert (revoked.id, revoked.status, revoked.revoked_at) == (made.id, "revoked", clock())
    assert await queue.find_token(made.secret) is None
    assert await queue.find_token(kept.secret) is not None
    clock.advance(100)
    assert [token.status for token in await queue.tokens()] == ["revoked", "active"]


async def test_a_token_is_revoked_once(queue: Queue, clock: MovedClock) -> None:
    made = await queue.create_token("ci", ["read"])
    first = await queue.revoke_token(made.id)
    clock.advance(5)
    assert await queue.revoke_token(made.id) == first
    told, _ = await queue.events()
    assert [event.verb for event in told] == ["token_created", "token_revoked"]


async def test_making_and_revoking_are_told_with_who_did_it(queue: Queue, clock: MovedClock) -> None:
    made = await queue.as_caller("human:ada", "r-1").create_token("ci", ["work"], expires_at=clock() + 60)
    await queue.as_caller("human:bob", "r-2").revoke_token(made.id)
    created, revoked = (await queue.events())[0]
    assert (created.names, created.actor, created.request_id) == (["token.created"], "human:ada", "r-1")
    assert created.data == {"token": made.id, "name": "ci", "scopes": ["work"], "expires_at": clock() + 60}
    assert (revoked.names, revoked.actor, revoked.request_id) == (["token.revoked"], "human:bob", "r-2")
    assert revoked.data == {"token": made.id, "name": "ci"}


async def test_a_token_of_another_workspace_cannot_be_revoked(queue: Queue) -> None:
    made = await queue.create_token("ci", ["read"])
    for token_id in (made.id, "0" * 12):
        with pytest.raises(NotFound):
            await queue.in_workspace("other").revoke_token(token_id)
    assert await queue.find_token(made.secret) is not None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": ["work", "root"]}, "scopes"),
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
async def test_bad_terms_are_refused(queue: Queue, change: dict[str, Any], where: str) -> None:
    terms: dict[str, Any] = {"name": "ci", "scopes": ["work"], "expires_at": None, **change}
    with pytest.raises(InputError) as refused:
        await queue.create_token(terms["name"], terms["scopes"], expires_at=terms["expires_at"])
    assert (refused.value.where or "").replace(".", "") == where
    assert await queue.tokens() == []


async def test_a_token_may_not_expire_now(queue: Queue, clock: MovedClock) -> None:
    with pytest.raises(InputError):
        await queue.create_token("ci", ["read"], expires_at=clock())


async def test_a_scope_named_twice_counts_once(queue: Queue) -> None:
    assert (await queue.create_token("ci", ["work", "read", "work"])).scopes == ["read", "work"]
