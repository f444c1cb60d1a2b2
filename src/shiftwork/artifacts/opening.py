"""Opens the depot that a URL names, or the folder beside a SQLite file."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

from shiftwork.artifacts.depot import Depot
from shiftwork.artifacts.folder import FolderDepot
from shiftwork.core.errors import InputError

VARIABLE = "SHIFTWORK_ARTIFACTS"


def open_depot(url: str | None, store_url: str) -> Depot | None:
    """A folder, `file:///folder` or `s3://bucket/prefix`; None where neither is named nor the store is a file."""
    url = url or os.environ.get(VARIABLE) or None
    if url is None:
        return _beside(store_url)
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return FolderDepot(Path(url).absolute())
    if scheme == "file" and rest.startswith("/"):
        return FolderDepot(Path(unquote(rest)))
    if scheme == "s3":
        from shiftwork.artifacts.bucket import BucketDepot  # noqa: PLC0415  # only what is used is loaded

        return BucketDepot(url)
    raise InputError(
        f"{url!r} is no place for artifacts",
        where="artifacts",
        mend="Write the path of a folder, file:///folder or s3://bucket/prefix.",
    )


def _beside(store_url: str) -> Depot | None:
    scheme, _, rest = store_url.partition("://")
    path = rest.removeprefix("/")
    if scheme != "sqlite" or path in {"", ":memory:"}:
        return None
    return FolderDepot(Path(f"{path}.artifacts").absolute())
