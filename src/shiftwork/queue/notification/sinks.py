"""Sinks: where notifications go, what they want to hear, and what is known of how they fare."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shiftwork.core.errors import IdInUse, InputError, NotFound
from shiftwork.core.task import Fields, Name
from shiftwork.policy import public, wants
from shiftwork.policy.wants import Wants
from shiftwork.queue import check, log
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.observation.conditions import Finding, compare
from shiftwork.queue.work import Work, as_json
from shiftwork.store.store import Row, Tx

Kind = Literal["webhook", "slack", "email"]
Address = Annotated[str, Meta(min_length=1, max_length=2000)]
Secret = Annotated[str, Meta(min_length=1, max_length=500)]
SIGNING = "whsec_"
_LETTER = re.compile(r"[^\s@,<>\"]{1,64}@[^\s@,<>\"]{1,255}")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_PORTS = {"smtp": 587, "smtps": 465}


class NewSink(Fields, kw_only=True):
    """A sink to be added. An e-mail goes to the addresses in `address`, by the mail server `server`, from `sender`."""

    name: Name
    kind: Kind
    address: Address
    """The URL of a webhook or of a Slack-compatible one; for e-mail one or more addresses with commas between."""
    wants: Wants = msgspec.field(default_factory=Wants)
    secret: Secret | None = None
    """What webhooks are signed with (`whsec_…`, made where none is given), or the password at the mail server."""
    allow_private: bool = False
    """Whether it may be reached at an address that is not public."""
    server: Address | None = None
    """`smtp://user@host:587` or `smtps://user@host:465`."""
    sender: Address | None = None


class SinkChanges(Fields, kw_only=True):
    """What is to be different about a sink; what is left out stays."""

    address: Address | UnsetType = UNSET
    wants: Wants | UnsetType = UNSET
    secret: Secret | UnsetType = UNSET
    allow_private: bool | UnsetType = UNSET
    server: Address | UnsetType = UNSET
    sender: Address | UnsetType = UNSET


class Sink(msgspec.Struct, frozen=True):
    """A sink as a reader sees it: without its secret, and of its URL only what is no secret."""

    id: str
    name: str
    workspace_id: str
    kind: Kind
    address: str
    server: str | None
    sender: str | None
    wants: Wants
    allow_private: bool
    status: Literal["active", "resting", "failing", "paused"]
    """`resting` after failures in a row; `failing` once a notification has been given up, until one arrives."""
    created_at: float
    created_by: str
    paused_at: float | None
    pause_reason: str | None
    rests_until: float | None
    last_error: str | None


class AddedSink(msgspec.Struct, frozen=True):
    """A sink just added: the only time that its secret is seen, and only where one was made for it."""

    sink: Sink
    secret: str | None

    def __repr__(self) -> str:
        """Without the secret, which has no place in a log or a traceback."""
        return f"AddedSink(sink={self.sink!r})"


class Place(NamedTuple):
    """How to reach a sink, with what must not be shown."""

    kind: Kind
    address: str
    secret: str | None
    server: str | None
    sender: str | None
    allow_private: bool


# -- checking ----------------------------------------------------------------------------------------------------


def checked(new: NewSink) -> NewSink:
    """The sink as it is stored, or an error that says what is wrong with it."""
    check.name(new.name, "name")
    check.fit(new, "sink")
    if new.kind == "webhook" and new.secret is None:
        new = msgspec.structs.replace(new, secret=SIGNING + base64.b64encode(secrets.token_bytes(32)).decode())
    check_wants(new.wants)
    _check_place(Place(new.kind, new.address, new.secret, new.server, new.sender, new.allow_private))
    return new


def check_wants(wanted: Wants) -> None:
    if (problem := wants.wrong(wanted)) is not None:
        where, what = problem
        raise InputError(what, where=where, mend="docs/reference/events.md names all events and kinds of alert.")


def _check_place(place: Place) -> None:
    if place.kind == "email":
        _check_mail(place)
        return
    if place.server is not None or place.sender is not None:
        raise InputError(f"a {place.kind} has no mail server and no sender", where="server")
    url = _url(place.address, ("http", "https"), "address")
    _check_host(url, place, "address")
    if place.kind == "slack" and place.secret is not None:
        raise InputError("a Slack-compatible webhook is not signed", where="secret")
    if place.kind == "webhook":
        key_of(place.secret or "")


def _check_mail(place: Place) -> None:
    if place.server is None or place.sender is None:
        missing = "server" if place.server is None else "sender"
        raise InputError(f"e-mail needs a {missing}", where=missing)
    url = _url(place.server, tuple(_PORTS), "server")
    _check_host(url, place, "server")
    if url.password is not None:
        raise InputError("the password is the sink's secret, not a part of its address", where="server")
    if (url.username is None) != (place.secret is None):
        raise InputError("a mail server that is logged in to needs a user in its address and a secret", where="secret")
    for where, text in (("address", place.address), ("sender", place.sender)):
        for each in recipients(text):
            if _LETTER.fullmatch(each) is None:
                raise InputError(f"{each!r} is no e-mail address", where=where)
    if len(recipients(place.sender)) != 1:
        raise InputError("expected one address", where="sender")


def _url(text: str, schemes: tuple[str, ...], where: str) -> SplitResult:
    expected = " or ".join(f"{scheme}://…" for scheme in schemes)
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise InputError(f"expected {expected}", where=where) from None
    if url.scheme not in schemes or not url.hostname or port == 0 or not text.isascii() or not text.isprintable():
        raise InputError(f"expected {expected} in printable ASCII", where=where)
    if " " in text:
        raise InputError("holds a space", where=where)
    return url


def _check_host(url: SplitResult, place: Place, where: str) -> None:
    host = url.hostname or ""
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) and not public.is_address(host):
        raise InputError(f"{host} is neither a name nor an address as it is usually written", where=where)
    if not place.allow_private and public.is_address(host) and not public.is_public(host):
        raise InputError(
            f"{host} is not a public address",
            where=where,
            mend="Name a public one, or let an admin add the sink with `allow_private`.",
        )


def key_of(secret: str) -> bytes:
    """The bytes that webhooks are signed with."""
    try:
        key = base64.b64decode(secret.removeprefix(SIGNING).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if not secret.startswith(SIGNING) or not 24 <= len(key) <= 64:
        raise InputError(f"expected {SIGNING} and 24 to 64 bytes in base64", where="secret")
    return key


def recipients(address: str) -> list[str]:
    return [each.strip() for each in address.split(",")]


def mail_server(address: str) -> tuple[str, str, int, str | None]:
    """Scheme, host, port and user of a mail server."""
    url = urlsplit(address)
    return url.scheme, url.hostname or "", url.port or _PORTS[url.scheme], url.username


# -- verbs -------------------------------------------------------------------------------------------------------


async def add(tx: Tx, engine: Engine, caller: Caller, workspace: str, sink_id: str, new: NewSink) -> Sink:
    """Keep a sink; it is told of what happens from now on."""
    await engine.book.add(tx, workspace)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "sink_added", data={"sink": new.name, "kind": new.kind})
    await work.save_events()
    fields = {name: getattr(new, name) for name in ("name", "kind", "address", "server", "sender")}
    added = await tx.one(
        "insert_sink",
        id=sink_id,
        workspace=workspace,
        **fields,
        secret=engine.vault.seal(new.secret),
        wants=as_json(new.wants),
        allow_private=new.allow_private,
        now=tx.now,
        actor=caller.actor,
        events=await log.last(tx),
        alerts=await log.last(tx, "alert"),
    )
    if added is None:
        raise IdInUse(f"there is a sink {new.name!r} already", where="name", mend="Choose another name, or change it.")
    return await read(tx, workspace, new.name)


async def update(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, changed: SinkChanges) -> Sink:
    """Change how a sink is reached or what it wants; what still waits for it goes there, too."""
    row = await _lock(tx, workspace, name)
    new = {field: value for field in changed.__struct_fields__ if (value := getattr(changed, field)) is not UNSET}
    _check_secret_follows(row, new)
    fields = {each: row[each] for each in ("address", "server", "sender")}
    fields |= {"allow_private": bool(row["allow_private"])} | {n: value for n, value in new.items() if n != "wants"}
    brought = fields.pop("secret", None)
    _check_place(Place(row["kind"], **fields, secret=brought or engine.vault.open(row["secret"])))
    fields["secret"] = engine.vault.seal(brought) if brought else row["secret"]
    before = wants_of(row)
    after = before if changed.wants is UNSET else changed.wants
    # Nothing was read for it of what it did not want; it is told from now on.
    events = row["events_after"] if before.events else await log.last(tx)
    alerts = row["alerts_after"] if before.alerts else await log.last(tx, "alert")
    await tx.run("update_sink", id=row["id"], **fields, wants=as_json(after), events=events, alerts=alerts)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "sink_updated", data={"sink": name, "changed": sorted(new)})
    await work.save_events()
    return await read(tx, workspace, name)


def _check_secret_follows(row: Row, new: Mapping[str, object]) -> None:
    """A secret is for the place it was given for: else one who may change a sink, but not read its secret, gets it."""
    where = "server" if row["kind"] == "email" else "address"
    moved = where in new and new[where] != row[where]
    if moved and row["secret"] is not None and "secret" not in new:
        raise InputError(
            f"the secret was given for another {where}",
            where="secret",
            mend=f"Send the secret again together with the new {where}; nothing was changed.",
        )


async def pause(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, reason: str | None) -> Sink:
    """Send nothing there until it is resumed; nothing is lost meanwhile."""
    row = await _lock(tx, workspace, name)
    if row["paused_at"] is None:
        await tx.run("pause_sink", id=row["id"], now=tx.now, reason=reason)
        work = Work(tx, engine, caller)
        work.tell_of(workspace, "sink_paused", data={"sink": name, "reason": reason})
        await work.save_events()
    return await read(tx, workspace, name)


async def resume(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Sink:
    """Send again, and at once, what has waited."""
    row = await _lock(tx, workspace, name)
    await tx.run("resume_sink", id=row["id"])
    if row["paused_at"] is not None:
        work = Work(tx, engine, caller)
        work.tell_of(workspace, "sink_resumed", data={"sink": name})
        await work.save_events()
    return await read(tx, workspace, name)


async def remove(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> bool:
    """Forget a sink with all that waits for it; False where there was none."""
    row = await tx.one("lock_sink", workspace=workspace, name=name)
    if row is None:
        return False
    await tx.run("remove_sink", id=row["id"], now=tx.now)
    work = Work(tx, engine, caller)
    await tell_failing(work, workspace)
    work.tell_of(workspace, "sink_removed", data={"sink": name})
    await work.save_events()
    return True


async def _lock(tx: Tx, workspace: str, name: str) -> Row:
    row = await tx.one("lock_sink", workspace=workspace, name=name)
    if row is None:
        raise _unknown(name)
    return row


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no sink {name!r}", where="sink")


async def tell_failing(work: Work, workspace: str) -> None:
    """One alert for each sink that a notification was given up for, until one arrives there."""
    rows = await work.tx.all("failing_sinks", workspace=workspace)
    found = [Finding(row["name"], "sink_failing", {"error": row["last_error"]}) for row in rows]
    await compare(work, workspace, "sink", found)


# -- reading -----------------------------------------------------------------------------------------------------


async def read(tx: Tx, workspace: str, name: str) -> Sink:
    row = await tx.one("read_sink", workspace=workspace, name=name)
    if row is None:
        raise _unknown(name)
    return _sink(row, tx.now)


async def read_all(tx: Tx, workspace: str) -> list[Sink]:
    return [_sink(row, tx.now) for row in await tx.all("list_sinks", workspace=workspace)]


def wants_of(row: Row) -> Wants:
    return msgspec.json.decode(row["wants"], type=Wants)


def place_of(row: Row) -> Place:
    """With the secret as it is stored; the courier opens it."""
    kept = (row["secret"], row["server"], row["sender"])
    return Place(row["kind"], row["address"], *kept, allow_private=bool(row["allow_private"]))


def _sink(row: Row, now: float) -> Sink:
    resting = row["rests_until"] is not None and row["rests_until"] > now
    status = "paused" if row["paused_at"] is not None else "failing" if row["failing"] else "active"
    return Sink(
        id=row["id"],
        name=row["name"],
        workspace_id=row["workspace"],
        kind=row["kind"],
        address=row["address"] if row["kind"] == "email" else shown(row["address"]),
        server=row["server"],
        sender=row["sender"],
        wants=wants_of(row),
        allow_private=bool(row["allow_private"]),
        status="resting" if status == "active" and resting else status,  # type: ignore[arg-type]  # one of the four
        created_at=row["created_at"],
        created_by=row["created_by"],
        paused_at=row["paused_at"],
        pause_reason=row["pause_reason"],
        rests_until=row["rests_until"] if resting else None,
        last_error=row["last_error"],
    )


def shown(address: str) -> str:
    """Of a URL only its host: the rest of it is often all that a stranger would need to write there."""
    url = urlsplit(address)
    host = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    return host if url.path in {"", "/"} and not url.query else f"{host}/…"
