"""Connects to one of several hosts, some of which may not answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

CONNECT_SEC = 10.0

_usable: dict[str, str] = {}
"""The last usable host of each address. It is tried first: an unresponsive host costs seconds each time."""


async def open_connection(dsn: str, **options: Any) -> Any:
    """A connection to the first host that is usable.

    The driver has one time limit for all hosts together, which a single unresponsive machine would use up.
    """
    hosts = sorted(_by_host(dsn), key=lambda host: host != _usable.get(dsn))
    error: Exception | None = None
    for host in hosts:
        try:
            connection = await asyncpg.connect(host, timeout=CONNECT_SEC / len(hosts), **options)
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched) as failed:
            error = failed
        else:
            _usable[dsn] = host
            return connection
    assert error is not None
    raise error


def _by_host(dsn: str) -> list[str]:
    """An address for each of its hosts."""
    parts = urlsplit(dsn)
    login, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [dsn]
    return [urlunsplit(parts._replace(netloc=login + at + host)) for host in hosts.split(",")]
