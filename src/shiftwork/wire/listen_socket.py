"""Opens the socket of a server; without tokens, only on loopback."""

from __future__ import annotations

import errno
import socket

from shiftwork.access.authenticator import is_loopback
from shiftwork.model.errors import InputError

DEAD_SEC = 60
"""A connection whose peer acknowledges nothing for this long is closed."""


def check_guarded(host: str, where: str, *, tokens: bool) -> None:
    """Require tokens on any address that other machines can reach."""
    if not tokens and not is_loopback(host):
        raise InputError(
            f"{host} can be reached from other machines, and this server would accept anyone",
            where=where,
            hint="Add --tokens and create some with `shiftwork tokens create`, or serve on 127.0.0.1.",
        )


def listen(
    host: str, port: int, host_at: str = "--host", port_at: str = "--port", *, reuse_port: bool = False
) -> socket.socket:
    """Bind the socket to serve on, before anything else is done.

    `host_at` and `port_at` name the options that errors refer to. With `reuse_port`, other processes of this user may
    share the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host or None, port, family, flags=socket.AI_PASSIVE)
        listening = socket.create_server((host, port), family=family, backlog=2048, reuse_port=reuse_port)
    except (socket.gaierror, UnicodeError) as error:
        raise _not_ours(host, host_at, error) from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _not_ours(host, host_at, error) from None
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            where=port_at,
            hint="Choose another port (0 finds a free one), or stop the program that uses it.",
        ) from None
    # Connections inherit these. asyncio sets the first only on sockets it created; without it, an answer takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * DEAD_SEC)
    return listening


def _not_ours(host: str, where: str, error: OSError | UnicodeError) -> InputError:
    return InputError(
        f"cannot listen on {host}: {getattr(error, 'strerror', None) or error}",
        where=where,
        hint="Use an address of this machine: 127.0.0.1 for local access only, 0.0.0.0 for all interfaces.",
    )


def address(listening: socket.socket) -> str:
    """The URL of this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
