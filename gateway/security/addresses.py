"""Which addresses the gateway may fetch from on a client's behalf. Pure.

Only what the public internet reaches: everything else is this machine, its network, or a cloud's
metadata service, to which the gateway has access and the client should not.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

NAT64 = IPv6Network("64:ff9b::/96")
COMPATIBLE = IPv6Network("::/96")

CLOUD = frozenset({IPv4Address("168.63.129.16")})
"""Azure's host agent, which is within the public range. Source: Azure's documentation."""


def is_public(address: str) -> bool:
    """Whether this numeric address, and every IPv4 address inside of it, is a public one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return all(map(_is_public, (parsed, *_embedded(parsed))))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and (address.scope_id or address.is_site_local):
        return False
    if isinstance(address, IPv6Address) and _embedded(address):
        return True  # what is inside of it decides
    return address.is_global and not address.is_multicast and address not in CLOUD


def _embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """IPv4 addresses that an IPv6 address leads to: mapped, NAT64, 6to4, Teredo, compatible."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in NAT64 or address in COMPATIBLE:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]
