"""The files of an agent's session, stored with the task so that another machine can resume it.

A pattern says where they are: `~/.claude/projects/{folder}/{session_id}.jsonl`. What is stored is named relative to the
part before the first wildcard, which each machine fills in with its own home and folder.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.worker.context import Context

MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of a session's files together."""

MAX_FILES = 1_000
KNOWN = {
    "claude": "~/.claude/projects/{folder}/{session_id}.jsonl",
    "codex": "~/.codex/sessions/**/*{session_id}.jsonl",
}
"""Patterns by program name; for other programs, the user gives one."""

_WILD = re.compile(r"[*?\[]")
_SESSION = re.compile(r"[A-Za-z0-9_.-]{1,200}")
"""Session ids that are safe in file names; others are not stored."""


def check(pattern: str) -> str:
    """The pattern for a program's name or a given one; refused if it does not distinguish sessions."""
    found = KNOWN.get(pattern, pattern)
    hint = f"One of {', '.join(KNOWN)}, or a pattern such as ~/.agent/{{session_id}}.json."
    if "{session_id}" not in found:
        raise InputError("the pattern has no {session_id}", where="--session-files", hint=hint)
    if ".." in Path(found).parts:
        raise InputError("the pattern leads upwards", where="--session-files", hint=hint)
    return found


def _place(pattern: str, session_id: str, work_dir: Path) -> tuple[Path, str] | None:
    """The folder before the first wildcard, and the rest as a pattern below it."""
    if _SESSION.fullmatch(session_id) is None or session_id.startswith("."):
        return None
    slug = re.sub(r"[^A-Za-z0-9]", "-", str(work_dir))  # as Claude Code names the folder of a project
    filled = pattern.replace("{session_id}", session_id).replace("{folder}", slug)
    parts = Path(filled).expanduser().parts
    count = next((n for n, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    return Path(*parts[:count]), "/".join(parts[count:])


def stamp(pattern: str, session_id: str, work_dir: Path) -> tuple[tuple[str, int, float], ...]:
    """A stamp to detect changes of the files."""
    return tuple(
        (str(file), file.stat().st_size, file.stat().st_mtime) for file in _files(pattern, session_id, work_dir)
    )


def _files(pattern: str, session_id: str, work_dir: Path) -> list[Path]:
    place = _place(pattern, session_id, work_dir)
    if place is None or not place[0].is_dir():
        return []
    return sorted(file for file in place[0].glob(place[1]) if file.is_file() and not file.is_symlink())[:MAX_FILES]


def pack(pattern: str, session_id: str, work_dir: Path) -> bytes | None:
    """The files as a tar archive; None if there are none, or they are too large."""
    place, files = _place(pattern, session_id, work_dir), _files(pattern, session_id, work_dir)
    if place is None or not files or sum(file.stat().st_size for file in files) > MAX_BYTES:
        return None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in files:
            archive.add(file, arcname=str(file.relative_to(place[0])), recursive=False)
    return packed.getvalue()


def unpack(pattern: str, session_id: str, work_dir: Path, packed: bytes) -> int:
    """Write the files where this machine's agent looks for them; returns how many. A longer existing file stays."""
    place, count = _place(pattern, session_id, work_dir), 0
    if place is None:
        return 0
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for member in archive:
            file = place[0] / member.name
            if not member.isfile() or ".." in Path(member.name).parts or Path(member.name).is_absolute():
                continue
            if member.size > MAX_BYTES or count >= MAX_FILES:
                continue
            if file.exists() and file.stat().st_size >= member.size:
                count += 1
                continue
            content = archive.extractfile(member)
            assert content is not None
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_bytes(content.read())
            file.chmod(0o600)
            count += 1
    return count


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
        if await asyncio.to_thread(stamp, self._pattern, session_id, self._work_dir):
            return True  # local files are never older than what this machine stored
        try:
            made = [each for each in await self._context.artifacts() if each.name == _name(session_id)]
            if not made:
                return False
            newest = max(made, key=lambda each: each.at)
            packed = b"".join([part async for part in self._context.open_artifact(newest.id)])
            return await asyncio.to_thread(unpack, self._pattern, session_id, self._work_dir, packed) > 0
        except (ShiftworkError, OSError, tarfile.TarError, EOFError) as error:
            log.warning("could not restore session %s of %s: %s", session_id, self._context.id, error)
            return False

    async def save(self, session_id: str | None) -> None:
        """Store the files if they have changed."""
        if session_id is None:
            return
        try:
            now = await asyncio.to_thread(stamp, self._pattern, session_id, self._work_dir)
            if not now or now == self._stored:
                return
            packed = await asyncio.to_thread(pack, self._pattern, session_id, self._work_dir)
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
