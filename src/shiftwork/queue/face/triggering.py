"""What starts work by itself: triggers, kept by operators, fired by hand, by webhooks and by the duties."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from shiftwork.core.errors import ConflictError, InputError, Malformed, ShiftworkError, TooLarge
from shiftwork.core.trigger import Fire, Firing, Hook, NewTrigger, Preview, SavedTrigger, Trigger
from shiftwork.policy import signature
from shiftwork.policy.signature import Refused
from shiftwork.queue import check
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.triggers import hooks, triggers
from shiftwork.queue.triggers.hooks import Known
from shiftwork.queue.triggers.triggers import Secret

SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SLOWEST_SEC = 30.0


class Triggering(Handle):
    """Verbs about triggers."""

    async def save_trigger(
        self,
        name: str,
        trigger: NewTrigger | Mapping[str, Any] | None = None,
        *,
        secret: str | None = None,
        **fields: Any,
    ) -> SavedTrigger:
        """Add a trigger, or change the one of this name. A secret made for a hook stands in this answer alone."""
        checked = _name(name)
        new = check.read(fields if trigger is None else trigger, NewTrigger, "trigger")
        triggers.check_new(new, self.workspace, await self._engine.book.get(self._engine.store, self.workspace))
        brought = _secret(new, secret)
        stored = await self._run(triggers.save, self.workspace, checked, new, brought)
        if stored.made not in {None, triggers.mark(brought.made)}:
            raise ConflictError(
                f"this request has saved the trigger {name} already, whose secret is not kept",
                mend="Save it again under a new key, with a secret of your own.",
            )
        return SavedTrigger(stored.trigger, None if stored.made is None else brought.made)

    async def triggers(self, *, after: str = "", limit: int = 100) -> list[Trigger]:
        """Every trigger, by name; `after` goes on behind one."""
        count = check.page(limit)
        behind = check.text(after, "after", 255) or ""
        return await self._read(lambda tx: triggers.read_all(tx, self.workspace, behind, count))

    async def trigger(self, name: str) -> Trigger:
        """One trigger: what it waits for, what it creates, and when a schedule fires next."""
        checked = check.name(name, "name")
        return await self._read(lambda tx: triggers.read(tx, self.workspace, checked))

    async def firings(self, name: str, *, limit: int = 20) -> list[Firing]:
        """The last times a trigger went off, with what it created or why it did not."""
        checked, count = check.name(name, "name"), check.page(limit)
        return await self._read(lambda tx: triggers.firings(tx, self.workspace, checked, count))

    async def pause_trigger(self, name: str) -> Trigger:
        """Let a trigger fire no more until it is resumed; what happens meanwhile is nothing to it."""
        return await self._run(triggers.pause, self.workspace, check.name(name, "name"))

    async def resume_trigger(self, name: str) -> Trigger:
        """Let a trigger fire again, for what comes from now on."""
        return await self._run(triggers.resume, self.workspace, check.name(name, "name"))

    async def remove_trigger(self, name: str) -> bool:
        """Forget a trigger with its firings; what it created stays. False where there was none."""
        return await self._run(triggers.remove, self.workspace, check.name(name, "name"))

    async def fire_trigger(self, name: str, given: Fire | Mapping[str, Any] | None = None, **fields: Any) -> Firing:
        """Create now what a trigger creates: with these `parameters`, or from `facts` as its source would tell them."""
        checked = check.fit(check.read(fields if given is None else given, Fire, "fire"), "fire")
        return await self._run(triggers.fire_by_hand, self.workspace, check.name(name, "name"), checked)

    async def preview_trigger(self, name: str, given: Fire | Mapping[str, Any] | None = None, **fields: Any) -> Preview:
        """What a firing would create, without creating it, and the next times of a schedule."""
        checked = check.fit(check.read(fields if given is None else given, Fire, "fire"), "fire")
        found = check.name(name, "name")
        return await self._read(
            lambda tx: triggers.preview(tx, self._engine, self.caller, self.workspace, found, checked)
        )

    # -- hooks -----------------------------------------------------------------------------------------------------

    async def receive_hook(self, name: str, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> Firing:
        """Take what was posted to a hook: the signature is the credential, and every refusal looks the same."""
        checked = check.name(name, "name")
        hook = await self._read(lambda tx: hooks.find(tx, self._engine, self.workspace, checked))
        lowered = {key.lower(): value for key, value in headers.items()}
        try:
            raw = await _whole(body)
            # A hook that is not there is checked as well: else the time of a refusal would tell which there are.
            on, secret = (hook.on, hook.secret) if hook is not None else hooks.NONE
            delivery, payload = hooks.believe(on, secret, lowered, raw, self._engine.store.now())
        except Refused as refused:
            self._note_refused(hook, refused.reason)
            raise hooks.refusal(name) from None
        except (TooLarge, Malformed) as error:
            self._note_refused(hook, error.what)
            raise
        if hook is None:
            raise hooks.refusal(name)
        try:
            came = await self._run_each_time(hooks.receive, self.workspace, name, delivery, payload)
        except (InputError, ConflictError) as error:
            self._note_refused(hook, str(error))
            raise
        if came.duplicate:
            self._note_refused(hook, "it was delivered before")
        return came

    def _note_refused(self, hook: Known | None, why: str) -> None:
        """Told while nobody waits for it, and seldom: anybody can send what is refused, as often as they like."""
        if hook is not None and hooks.is_news(self._engine, hook.trigger.id):
            self._shared.keep(asyncio.ensure_future(self._tell_refused(hook, why)))

    async def _tell_refused(self, hook: Known, why: str) -> None:
        with suppress(ShiftworkError):  # its sender was answered long ago
            await self._run_each_time(hooks.tell_refused, hook.trigger, why)


def _name(name: str) -> str:
    """Part of an address, and of who creates what the trigger creates."""
    if _NAME.fullmatch(check.name(name, "name")) is None:
        raise InputError("a trigger's name is at most 100 letters, digits and . _ -", where="name")
    return name


def _secret(new: NewTrigger, given: str | None) -> Secret:
    if not isinstance(new.on, Hook):
        if given is not None:
            raise InputError("only a hook has a secret", where="secret")
        return Secret()
    if given is not None:
        signature.check_secret(new.on.signature, check.name(given, "secret"))
        return Secret(given)
    return Secret(made=signature.secret_of(new.on.signature, secrets.token_bytes(SECRET_BYTES)))


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    """The body, which may be neither too large nor too slow: nobody knows yet who sends it."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(SLOWEST_SEC):
            async for part in body:
                size += len(part)
                if size > hooks.LARGEST_BYTES:
                    raise TooLarge(f"more than {hooks.LARGEST_BYTES} bytes", where="body", mend="A hook takes no more.")
                parts.append(part)
    except TimeoutError:
        raise Malformed(f"the body did not come within {SLOWEST_SEC:g} seconds", where="body") from None
    return b"".join(parts)
