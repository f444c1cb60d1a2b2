"""Tokens: the callers that a server admits, with workspace and scopes. A secret is shown once and never stored."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence

import msgspec

from shiftwork.access.api import Tokens
from shiftwork.access.authenticator import id_in, make_secret
from shiftwork.access.model import SCOPES, NewToken, TokenInfo
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model.errors import ConflictError, InputError, NotFound
from shiftwork.model.times import Time, epoch
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.store.store import Row, Tx, record


def digest(secret: str) -> str:
    """The stored hash of a secret. The secret is long and random, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


@implements(Tokens.create)
async def create_token(call: Call, name: str, scopes: Sequence[str], *, expires_at: Time | None = None) -> NewToken:
    until = epoch(expires_at)
    if until is not None and not math.isfinite(until):
        raise InputError(f"{until!r} is not a time", where="expires_at")
    token_id, secret = make_secret()
    ordered = [scope for scope in SCOPES if scope in scopes]
    info = await call.run(_keep_token, call.workspace, token_id, digest(secret), name, ordered, until)
    if info.id != token_id:
        raise ConflictError(
            f"this request has already created the token {info.id}; its secret is not stored",
            token=info.id,
            hint="Revoke that token, and create another with a new key.",
        )
    return NewToken(
        id=info.id,
        name=info.name,
        workspace_id=info.workspace_id,
        scopes=info.scopes,
        secret=secret,
        created_at=info.created_at,
        created_by=info.created_by,
        expires_at=info.expires_at,
    )


async def _keep_token(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    token_id: str,
    hashed: str,
    name: str,
    scopes: list[str],
    expires_at: float | None,
) -> TokenInfo:
    if expires_at is not None and expires_at <= tx.now:
        raise InputError("a token cannot expire before it is created", where="expires_at")
    await engine.settings_cache.add(tx, workspace)
    await tx.run(
        "insert_token",
        id=token_id,
        workspace=workspace,
        name=name,
        scopes=as_json(scopes),
        hash=hashed,
        now=tx.now,
        actor=caller.actor,
        expires_at=expires_at,
    )
    work = UnitOfWork(tx, engine, caller)
    data = {"token": token_id, "name": name, "scopes": scopes, "expires_at": expires_at}
    work.emit_for(workspace, "token_created", data=data)
    await work.save_events()
    return await _read(tx, workspace, token_id)


@transaction(Tokens.revoke)
async def revoke_token(tx: Tx, engine: Engine, caller: Caller, workspace: str, token_id: str) -> TokenInfo:
    revoked = await tx.one("revoke_token", workspace=workspace, id=token_id, now=tx.now)
    info = await _read(tx, workspace, token_id)
    if revoked is not None:
        work = UnitOfWork(tx, engine, caller)
        work.emit_for(workspace, "token_revoked", data={"token": token_id, "name": info.name})
        await work.save_events()
    return info


async def _read(tx: Tx, workspace: str, token_id: str) -> TokenInfo:
    row = await tx.one("read_token", id=token_id)
    if row is None or row["workspace"] != workspace:
        raise NotFound(f"there is no token {token_id!r}", where="token")
    return _info(row, tx.now)


@reading(Tokens.list)
async def list_tokens(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[TokenInfo]:
    return [_info(row, tx.now) for row in await tx.all("list_tokens", workspace=workspace)]


async def find_token(engine: Engine, secret: str) -> TokenInfo | None:
    """The live token with this secret, of any workspace; None if it is unknown, expired or revoked."""
    token_id = id_in(secret)
    return None if token_id is None else await engine.store.read(lambda tx: _find(tx, token_id, secret))


async def _find(tx: Tx, token_id: str, secret: str) -> TokenInfo | None:
    row = await tx.one("read_token", id=token_id)
    if row is None or not hmac.compare_digest(row["hash"], digest(secret)):
        return None
    info = _info(row, tx.now)
    return info if info.status == "active" else None


def _info(row: Row, now: float) -> TokenInfo:
    expired = row["expires_at"] is not None and row["expires_at"] <= now
    return record(
        TokenInfo,
        row,
        workspace_id=row["workspace"],
        scopes=msgspec.json.decode(row["scopes"]),
        status="revoked" if row["revoked_at"] is not None else "expired" if expired else "active",
    )
