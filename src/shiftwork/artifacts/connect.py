"""Opens the blob store that a URL names, or the folder next to a SQLite file."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

from shiftwork.artifacts.blob_folder import FolderBlobStore
from shiftwork.artifacts.blob_store import BlobStore
from shiftwork.model.errors import InputError

VARIABLE = "SHIFTWORK_ARTIFACTS"


def open_blob_store(url: str | None, store_url: str) -> BlobStore | None:
    """Open a folder, `file:///folder` or `s3://bucket/prefix`; None without a URL unless the store is a file."""
    url = url or os.environ.get(VARIABLE) or None
    if url is None:
        return _default_blob_store(store_url)
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return FolderBlobStore(Path(url).absolute())
    if scheme == "file" and rest.startswith("/"):
        return FolderBlobStore(Path(unquote(rest)))
    if scheme == "s3":
        from shiftwork.artifacts.bucket import BucketBlobStore  # noqa: PLC0415  # loaded only if used

        return BucketBlobStore(url)
    raise InputError(
        f"{url!r} cannot store artifacts",
        where="artifacts",
        hint="Write the path of a folder, file:///folder or s3://bucket/prefix.",
    )


def _default_blob_store(store_url: str) -> BlobStore | None:
    scheme, _, rest = store_url.partition("://")
    path = rest.removeprefix("/")
    if scheme != "sqlite" or path in {"", ":memory:"}:
        return None
    return FolderBlobStore(Path(f"{path}.artifacts").absolute())
