"""The interface between artifacts and the storage of their bytes."""

from __future__ import annotations

import errno
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from shiftwork.model.errors import ArtifactDamaged, StoreError, StoreFull, StoreReadOnly, StoreUnavailable

_PLACE = re.compile(r"[0-9a-f]{16}/[0-9a-f]{16}/[0-9a-f]{2}/[0-9a-f]{64}-[0-9a-f]{16}")


class StoredBlob(NamedTuple):
    """A place with bytes, and when they were written."""

    place: str
    written_at: float


class BlobStore(Protocol):
    """Stores bytes at places. A place is written only once, so that removing it never removes other content."""

    url: str

    async def incoming(self) -> Path:
        """The folder in which uploads are collected before they get their place."""

    async def keep(self, file: Path, place: str) -> None:
        """Put the bytes of a file at a new place, durably; the file may be moved away."""

    def read(self, place: str, start: int, length: int) -> AsyncIterator[bytes]:
        """Read this many bytes from an offset, in parts of any size; fewer, or `ArtifactDamaged`, if they are
        missing.
        """

    async def remove(self, places: Sequence[str]) -> None:
        """Remove the bytes at a place; succeeds if there are none."""

    async def page(self, mark: str, after: str | None, count: int) -> list[StoredBlob]:
        """The next places of one queue, in their order."""

    async def tidy(self, before: float) -> int:
        """Remove the remains of uploads interrupted before this time; returns how many."""

    async def close(self) -> None:
        """Remove this store's temporary files on this machine."""


def new_place(mark: str, workspace: str, sha256: str) -> str:
    """A new place for these bytes: two uploads of the same content never share one."""
    prefix = hashlib.sha256(workspace.encode()).hexdigest()[:16]  # a workspace name can be any text
    return f"{mark}/{prefix}/{sha256[:2]}/{sha256}-{secrets.token_hex(8)}"


def is_place(text: str) -> bool:
    return _PLACE.fullmatch(text) is not None


def check_place(place: str) -> str:
    """Refuse a place that we did not make, so that a wrong row cannot lead to another file."""
    if not is_place(place):
        raise ArtifactDamaged(f"{place!r} is not the address of an artifact")
    return place


_KINDS: dict[int, type[StoreError]] = {
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EFBIG: StoreFull,
    errno.EROFS: StoreReadOnly,
    errno.EACCES: StoreReadOnly,
    errno.EPERM: StoreReadOnly,
}
_HINT = {
    StoreReadOnly: "Give this process write access, or name another folder for artifacts.",
    StoreUnavailable: "Check the artifact folder; acknowledged artifacts in it are unchanged.",
}


@contextmanager
def as_store_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, StoreUnavailable)
        raise kind(f"{path}: {error.strerror or error}", where="artifacts", hint=_HINT.get(kind)) from error
