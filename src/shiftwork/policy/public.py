"""Which network addresses are public: the only ones that a notification goes to unless its sink says otherwise."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All that IPv6 has given out to be reached; the rest is local, of no use yet, or a way to write an IPv4 address."""

# What `is_global` says differs between versions of Python, so the ranges of the registries of IANA stand here, too.
_NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "3fff::/20"),
    )
]


def is_public(address: str) -> bool:
    """Whether this IP address can be reached by anybody; an IPv4 address inside an IPv6 one is looked at itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(one) for one in _all_in(parsed))


def _is_public(one: IPv4Address | IPv6Address) -> bool:
    if one.version == 6 and one not in _GLOBAL_UNICAST:
        return False
    listed = any(one.version == each.version and one in each for each in _NOT_PUBLIC)
    return not listed and one.is_global and not one.is_multicast and not one.is_reserved


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
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]
