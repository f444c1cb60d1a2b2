"""Stores artifact bytes in a bucket of an S3-compatible store."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from shiftwork.artifacts.blob_store import StoredBlob, as_store_error, check_place
from shiftwork.artifacts.spool import BLOCK
from shiftwork.model.errors import ArtifactDamaged, InputError, StoreUnavailable, StoreUnsuitable

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Store

PART = 8 * 1_048_576
PARTS_AT_ONCE = 2
"""Parts of one upload sent in parallel; few, so that many uploads fit in memory."""
PATIENCE = timedelta(seconds=20)
RETRIES = 5
_OPTIONS = ("endpoint", "region")
_HINT = "Write s3://bucket/prefix, and add ?endpoint=http://host:port&region=name if needed."


class BucketBlobStore:
    """A bucket, or a prefix in one. Credentials come from the environment, as for every S3 client."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = _connect(url)
        self._incoming: Path | None = None

    async def incoming(self) -> Path:
        """A local folder: the hash and size of an upload must be known before it is sent."""
        if self._incoming is None:
            with as_store_error(tempfile.gettempdir()):
                self._incoming = Path(tempfile.mkdtemp(prefix="shiftwork-artifacts-"))
        return self._incoming

    async def keep(self, file: Path, place: str) -> None:
        with _as_store_error(self.url):
            await self._store.put_async(check_place(place), file, chunk_size=PART, max_concurrency=PARTS_AT_ONCE)

    async def read(self, place: str, start: int, length: int) -> AsyncIterator[bytes]:
        with _as_store_error(self.url):
            found, at = await self._open(check_place(place), start, start + length)
            async for part in found.stream(min_chunk_size=BLOCK):
                yield bytes(part)[max(0, start - at) : start + length - at]
                at += len(part)
                if at >= start + length:
                    break

    async def _open(self, place: str, start: int, end: int) -> tuple[GetResult, int]:
        """Get the object from `start`, or from its beginning if the store does not support ranges."""
        from obstore.exceptions import GenericError  # noqa: PLC0415  # an optional extra

        if start:
            try:
                return await self._store.get_async(place, options={"range": (start, end)}), start
            except GenericError as error:
                if "non-partial" not in str(error):
                    raise
        return await self._store.get_async(place), 0

    async def remove(self, places: Sequence[str]) -> None:
        with _as_store_error(self.url, missing_ok=True):
            if places:
                await self._store.delete_async([check_place(place) for place in places])

    async def page(self, mark: str, after: str | None, count: int) -> list[StoredBlob]:
        with _as_store_error(self.url):
            async for page in self._store.list(mark, offset=after, chunk_size=count):
                return [StoredBlob(each["path"], each["last_modified"].timestamp()) for each in page]
        return []

    async def tidy(self, before: float) -> int:  # noqa: ARG002  # S3 uploads are atomic, so nothing is left
        return 0

    async def close(self) -> None:
        if self._incoming is not None:
            await asyncio.to_thread(shutil.rmtree, self._incoming, ignore_errors=True)


def _connect(url: str) -> S3Store:
    try:
        from obstore.store import S3Store  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise StoreUnsuitable("the client for S3 is not installed", hint="pip install 'shiftwork[s3]'") from error
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise InputError(f"{unknown[0]!r} is not an option of a bucket", where="artifacts", hint=_HINT)
    if parts.username or parts.password:
        raise InputError("the address of a bucket must not contain a secret", where="artifacts", hint=_HINT)
    if not parts.hostname:
        raise InputError("the address names no bucket", where="artifacts", hint=_HINT)
    config: S3Config = {"region": options.get("region", "us-east-1")} if {"region", "endpoint"} & options.keys() else {}
    client: ClientConfig = {"timeout": PATIENCE}
    if endpoint := options.get("endpoint"):
        config["endpoint"] = endpoint
        client["allow_http"] = endpoint.startswith("http://")
    prefix = parts.path.strip("/") or None
    retry: RetryConfig = {"max_retries": RETRIES, "retry_timeout": PATIENCE}
    return S3Store(parts.netloc, prefix=prefix, config=config, client_options=client, retry_config=retry)


@contextmanager
def _as_store_error(url: str, *, missing_ok: bool = False) -> Iterator[None]:
    from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415  # an optional extra

    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        if not missing_ok:
            raise ArtifactDamaged("the stored file is missing") from error
    except (BaseError, OSError) as error:
        what = str(error).partition("\n")[0]
        raise StoreUnavailable(f"{url}: {what}", where="artifacts", hint="Check the address and the keys.") from error
