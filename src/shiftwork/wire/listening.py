"""Where a server listens: only on this machine, unless it asks for tokens."""

from __future__ import annotations

import errno
import socket

from shiftwork.access.authenticator import is_loopback
from shiftwork.model.errors import InputError

DEAD_SEC = 60
"""A connection whose other end takes nothing for this long is cut off."""


def check_guarded(host: str, where: str, *, tokens: bool) -> None:
    """What would be open to the world must ask for tokens."""
    if not tokens and not is_loopback(host):
        raise InputError(
            f"{host} can be reached from other machines, and this server would accept anyone",
            where=where,
            hint="Add --tokens and make some with `shiftwork tokens create`, or serve on 127.0.0.1.",
        )


def listen(
    host: str, port: int, host_at: str = "--host", port_at: str = "--port", *, reuse_port: bool = False
) -> socket.socket:
    """The socket to serve on, taken before anything else is done.

    `host_at` and `port_at` say where each was asked for. With `reuse_port` others of this user may share the port.
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
            hint="Choose another port (0 finds a free one), or stop the program that has it.",
        ) from None
    # Connections take these over. asyncio sets the first one only on sockets it made itself: 40 ms an answer.
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
    """Where callers find this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
