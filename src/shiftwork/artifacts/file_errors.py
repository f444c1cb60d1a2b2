"""Translates file-system errors into the queue's errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from shiftwork.model.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable

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
