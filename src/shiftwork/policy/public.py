"""Which network addresses are public: the only ones that a notification goes to unless its sink says otherwise."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether this IP address can be reached by anybody; an IPv4 address inside an IPv6 one is looked at itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(one.is_global and not one.is_multicast and not one.is_reserved for one in _all_in(parsed))


def is_address(text: str) -> bool:
    """Whether a host is written as an IP address and not as a name."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _all_in(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """What the packets may reach in the end: the address, or those hidden in it."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]
