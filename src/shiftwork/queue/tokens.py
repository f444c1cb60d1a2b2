"""Tokens: who may come in over HTTP, to which workspace, and what they may do. A secret is shown once, never kept."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.scopes import SCOPES
from shiftwork.queue import check
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.work import Work, as_json
from shiftwork.store.store import Row, Tx

ID_LENGTH = 12
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_SECRET = re.compile(rf"sw_([{_LETTERS}]{{{ID_LENGTH}}})_[A-Za-z0-9_-]{{43}}")


class TokenInfo(msgspec.Struct, frozen=True):
    """A token as a reader sees it."""

    id: str
    name: str
    workspace_id: str
    scopes: list[str]
    status: Literal["active", "expired", "revoked"]
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None


class NewToken(msgspec.Struct, frozen=True):
    """A token just made: the only time that its secret is seen."""

    id: str
    name: str
    workspace_id: str
    scopes: list[str]
    secret: str
    created_at: float
    created_by: str
    expires_at: float | None

    def __repr__(self) -> str:
        """Without the secret, which has no place in a log or a traceback."""
        return f"NewToken(id={self.id!r}, name={self.name!r}, scopes={self.scopes!r})"


class Terms(NamedTuple):
    """What a token is to be."""

    name: str
    scopes: tuple[str, ...]
    expires_at: float | None


def check_terms(name: str, scopes: Sequence[str], expires_at: float | None) -> Terms:
    given = check.read(scopes, list[str], "scopes")
    unknown = [scope for scope in given if scope not in SCOPES]
    if unknown or not given:
        what = f"there is no scope {unknown[0]!r}" if unknown else "a token needs at least one scope"
        raise InputError(what, where="scopes", mend="Choose from " + ", ".join(SCOPES) + ".")
    if expires_at is not None and not math.isfinite(check.read(expires_at, float, "expires_at")):
        raise InputError(f"{expires_at!r} is no time", where="expires_at")
    return Terms(check.name(name, "name"), tuple(scope for scope in SCOPES if scope in given), expires_at)


def make_secret() -> tuple[str, str]:
    """A token's id and its secret, in which the id stands: with it a secret that was found somewhere can be revoked."""
    token_id = "".join(secrets.choice(_LETTERS) for _ in range(ID_LENGTH))
    return token_id, f"sw_{token_id}_{secrets.token_urlsafe(32)}"


def id_in(secret: str) -> str | None:
    """The id of the token that this may be the secret of."""
    match = _SECRET.fullmatch(secret)
    return match[1] if match else None


def digest(secret: str) -> str:
    """What is kept of a secret. It is long and random, so that a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def create(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, token_id: str, hashed: str, terms: Terms
) -> TokenInfo:
    """Keep a token whose secret the caller has made."""
    if terms.expires_at is not None and terms.expires_at <= tx.now:
        raise InputError("a token cannot expire before it is made", where="expires_at")
    await engine.book.add(tx, workspace)
    await tx.run(
        "insert_token",
        id=token_id,
        workspace=workspace,
        name=terms.name,
        scopes=as_json(terms.scopes),
        hash=hashed,
        now=tx.now,
        actor=caller.actor,
        expires_at=terms.expires_at,
    )
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "token_created", data={"token": token_id, **terms._asdict()})
    await work.save_events()
    return await read(tx, workspace, token_id)


async def revoke(tx: Tx, engine: Engine, caller: Caller, workspace: str, token_id: str) -> TokenInfo:
    """Close every door to whoever has its secret; again changes nothing."""
    revoked = await tx.one("revoke_token", workspace=workspace, id=token_id, now=tx.now)
    info = await read(tx, workspace, token_id)
    if revoked is not None:
        work = Work(tx, engine, caller)
        work.tell_of(workspace, "token_revoked", data={"token": token_id, "name": info.name})
        await work.save_events()
    return info


async def read(tx: Tx, workspace: str, token_id: str) -> TokenInfo:
    row = await tx.one("read_token", id=token_id)
    if row is None or row["workspace"] != workspace:
        raise NotFound(f"there is no token {token_id!r}", where="token")
    return _info(row, tx.now)


async def read_all(tx: Tx, workspace: str) -> list[TokenInfo]:
    return [_info(row, tx.now) for row in await tx.all("list_tokens", workspace=workspace)]


async def find(tx: Tx, token_id: str, secret: str) -> TokenInfo | None:
    """The live token with this secret, of whichever workspace."""
    row = await tx.one("read_token", id=token_id)
    if row is None or not hmac.compare_digest(row["hash"], digest(secret)):
        return None
    info = _info(row, tx.now)
    return info if info.status == "active" else None


def _info(row: Row, now: float) -> TokenInfo:
    expired = row["expires_at"] is not None and row["expires_at"] <= now
    return TokenInfo(
        id=row["id"],
        name=row["name"],
        workspace_id=row["workspace"],
        scopes=msgspec.json.decode(row["scopes"]),
        status="revoked" if row["revoked_at"] is not None else "expired" if expired else "active",
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )
