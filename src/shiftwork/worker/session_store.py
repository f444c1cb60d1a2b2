"""Stores the files of an agent's session with its task, and restores them where the task resumes."""

from __future__ import annotations

import asyncio
import logging
import tarfile
from collections.abc import Callable
from pathlib import Path

from shiftwork.model.errors import ShiftworkError
from shiftwork.worker import session_files
from shiftwork.worker.context import Context

log = logging.getLogger("shiftwork.worker")
KEEP_EVERY_SEC = 60.0
"""How often to store them: the most that is lost if the machine dies."""


class SessionStore:
    """The session files of one attempt. A failure to store them never fails the task."""

    def __init__(self, context: Context, pattern: str, work_dir: Path) -> None:
        self._context = context
        self._pattern = pattern
        self._work_dir = work_dir
        self._stored: object = ()

    async def restore(self, session_id: str) -> bool:
        """Make sure the files are here; false if no earlier attempt stored them."""
        if await asyncio.to_thread(session_files.stamp, self._pattern, session_id, self._work_dir):
            return True  # local files are never older than what this machine stored
        try:
            made = [each for each in await self._context.artifacts() if each.name == _name(session_id)]
            if not made:
                return False
            newest = max(made, key=lambda each: each.at)
            packed = b"".join([part async for part in self._context.open_artifact(newest.id)])
            unpack = session_files.unpack
            return await asyncio.to_thread(unpack, self._pattern, session_id, self._work_dir, packed) > 0
        except (ShiftworkError, OSError, tarfile.TarError, EOFError) as error:
            log.warning("could not restore session %s of %s: %s", session_id, self._context.id, error)
            return False

    async def save(self, session_id: str | None) -> None:
        """Store the files if they have changed."""
        if session_id is None:
            return
        try:
            now = await asyncio.to_thread(session_files.stamp, self._pattern, session_id, self._work_dir)
            if not now or now == self._stored:
                return
            packed = await asyncio.to_thread(session_files.pack, self._pattern, session_id, self._work_dir)
            if packed is None:
                log.warning("session %s of %s is too large to be stored", session_id, self._context.id)
                return
            await self._context.put_artifact(packed, name=_name(session_id), media_type="application/gzip")
            self._stored = now
        except (ShiftworkError, OSError) as error:
            log.warning("could not store session %s of %s: %s", session_id, self._context.id, error)

    async def save_forever(self, session_id: Callable[[], str | None]) -> None:
        """Store the files periodically, in case the machine dies."""
        while True:
            await asyncio.sleep(KEEP_EVERY_SEC)
            await self.save(session_id())


def _name(session_id: str) -> str:
    return f"session-{session_id}.tar.gz"
