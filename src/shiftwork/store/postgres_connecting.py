"""Connects to one of several hosts, of which some may not answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

CONNECT_SEC = 10.0

_usable: dict[str, str] = {}
"""The host of an address that was usable last. It is tried first: a silent one costs seconds each time."""


async def open_connection(dsn: str, **options: Any) -> Any:
    """A connection to the first host that is usable.

    The driver has one limit for all hosts together, which a machine without power or network uses up.
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
