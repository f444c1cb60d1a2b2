"""A durable place for results that could not be handed in: kept on disk until the queue has answered."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

log = logging.getLogger("shiftwork.worker")


class Kept(msgspec.Struct):
    """A finished attempt: what it came to, under which claim."""

    token: str
    done: bool
    data: Any = None
    text: str | None = None
    decision_report: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    artifacts: list[str] = []
    reason: str | None = None
    error: str | None = None
    retry: bool = True
    usage: dict[str, Any] | None = None


def default_folder(store: str, kind: str = "outbox") -> Path | None:
    """One for all workers of a store on this machine, so that whoever starts next goes on with what is left.

    It is beside the database file, or in the user's state folder for a database elsewhere.
    """
    if ":memory:" in store:
        return None
    if store.startswith("sqlite:///"):
        path = Path(store.removeprefix("sqlite:///"))
        return path.with_name(f"{path.name}.{kind}")
    parts = urlsplit(store)
    # The password may change, the database or the server is the same.
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    return _state_folder() / "shiftwork" / kind / hashlib.sha256(place.encode()).hexdigest()[:16]


def _state_folder() -> Path:
    if named := os.environ.get("XDG_STATE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir())


def open_outbox(own: Path | None, store: str, workspace: str) -> Outbox:
    """The worker's own folder or that of its store. What belongs to other workspaces is none of ours."""
    folder = own or default_folder(store)
    return Outbox(folder if folder is None or workspace == "default" else folder / quote(workspace, safe=""))


class Outbox:
    """One small file per result, written whole or not at all."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._written: set[str] = set()

    def keep(self, kept: Kept) -> bool:
        """Write it down; False where that cannot be done, and memory is all there is."""
        if self._folder is None:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(self._file(kept.token), msgspec.json.encode(kept))
        except (OSError, TypeError, ValueError, RecursionError) as error:
            log.warning("%s cannot be kept in the outbox: %s", kept.token, error)
            return False
        self._written.add(kept.token)
        return True

    def _write(self, target: Path, text: bytes) -> None:
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)

    @property
    def holds_any(self) -> bool:
        return bool(self._written)

    def has(self, token: str) -> bool:
        return token in self._written

    def drop(self, token: str) -> None:
        """It was handed in, or is not wanted any more."""
        if token in self._written:
            self._written.discard(token)
            self._file(token).unlink(missing_ok=True)

    def left(self) -> Iterator[Kept]:
        """What an earlier run, or another worker, could not hand in."""
        for file in sorted(self._folder.glob("*.json")) if self._folder and self._folder.is_dir() else []:
            try:
                kept = msgspec.json.decode(file.read_bytes(), type=Kept)
            except FileNotFoundError:
                continue  # its own worker was faster
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s in the outbox cannot be read (%s); it is left for you to look at", file, error)
                continue
            self._written.add(kept.token)
            yield kept

    def _file(self, token: str) -> Path:
        assert self._folder is not None
        return self._folder / (re.sub(r"[^\w.-]", "_", token) + ".json")
