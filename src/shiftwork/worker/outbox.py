"""A durable place for results that could not be handed in: kept on disk until the queue has answered."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

log = logging.getLogger("shiftwork.worker")


class Kept(msgspec.Struct):
    """A finished attempt: what it came to, under which claim."""

    token: str
    done: bool
    data: Any = None
    reason: str | None = None
    error: str | None = None
    retry: bool = True
    usage: dict[str, Any] | None = None


def default_folder(store: str | None, agent_id: str) -> Path | None:
    """Beside the database file, or in the user's state folder for a database elsewhere."""
    if store is None:
        return None
    name = re.sub(r"[^\w.-]", "_", agent_id)
    if store.startswith("sqlite:///"):
        path = Path(store.removeprefix("sqlite:///"))
        return path.with_name(path.name + ".outbox") / name
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "shiftwork" / "outbox" / name


class Outbox:
    """One small file per result, written whole or not at all."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def keep(self, kept: Kept) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._file(kept.token)
        temporary = target.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)

    def drop(self, token: str) -> None:
        if self._folder is not None:
            self._file(token).unlink(missing_ok=True)

    def left(self) -> Iterator[Kept]:
        """What an earlier run could not hand in."""
        for file in sorted(self._folder.glob("*.json")) if self._folder and self._folder.is_dir() else []:
            try:
                yield msgspec.json.decode(file.read_bytes(), type=Kept)
            except msgspec.DecodeError as error:
                log.warning("%s in the outbox cannot be read (%s); it is left for you to look at", file, error)

    def _file(self, token: str) -> Path:
        assert self._folder is not None
        return self._folder / (re.sub(r"[^\w.-]", "_", token) + ".json")
