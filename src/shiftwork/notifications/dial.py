"""Connects to public addresses only, unless the sink allows others.

The address of each actual connection is checked, so that neither a name that resolves differently later nor an unusual
spelling of an address gets through.
"""

from __future__ import annotations

import socket
from typing import Any

from shiftwork.notifications.policy import is_public


class NotPublic(OSError):
    """The address is not public, and the sink does not allow that."""


def open_public(info: tuple[Any, ...]) -> socket.socket:
    """A socket for one address resolved by `getaddrinfo`."""
    family, kind, protocol, _, address = info
    check(address)
    return socket.socket(family, kind, protocol)


def check(address: Any) -> None:
    if not is_public(str(address[0])):
        raise NotPublic(
            "its address is not public: set allow_private, and SHIFTWORK_PRIVATE_SINKS=1 on the sending process"
        )


def connect(host: str, port: int, timeout: float, *, allow_private: bool) -> socket.socket:
    """A connection to a host, for blocking code."""
    refused: OSError = OSError("its host name cannot be resolved")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            if not allow_private:
                check(address)
            connection.settimeout(timeout)
            connection.connect(address)
        except OSError as error:
            connection.close()
            refused = error
        else:
            return connection
    raise refused
