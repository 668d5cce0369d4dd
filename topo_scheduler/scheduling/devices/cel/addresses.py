"""IP addresses and networks as Go's ``net/netip`` parses them."""

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_BITS: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_LONGEST: Final = 64
_BROADCAST: Final = IPv4Address("255.255.255.255")


class AddressError(ValueError):
    """The text is no address or network."""


@dataclass(frozen=True, slots=True)
class NetworkPrefix:
    """An address with the length of a prefix; bits behind the prefix may be set."""

    address: Address
    bits: int

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    def masked(self) -> "NetworkPrefix":
        """Return the network with the bits behind the prefix cleared."""
        free = self.address.max_prefixlen - self.bits
        return NetworkPrefix(type(self.address)(int(self.address) >> free << free), self.bits)

    def contains(self, address: Address) -> bool:
        """Return whether an address is in the network."""
        free = self.address.max_prefixlen - self.bits
        return self.address.version == address.version and int(self.address) >> free == int(address) >> free

    def contains_network(self, other: "NetworkPrefix") -> bool:
        """Return whether all of another network is in this one."""
        return self.bits <= other.bits and self.contains(other.address)


def parse_address(text: str) -> Address:
    """Return the address that a text stands for, without a zone and not an IPv4 one written as IPv6.

    Raises:
        AddressError: it is not one.
    """
    address = None
    if len(text) <= _LONGEST and "%" not in text and text.isascii():
        with suppress(ValueError):
            address = ipaddress.ip_address(text)
    if address is None:
        raise AddressError(f"{text[:_LONGEST]!r} is not an IP address")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise AddressError(f"{text!r} is an IPv4 address written as IPv6, which is not allowed")
    return address


def parse_network(text: str) -> NetworkPrefix:
    """Return the network that a text such as ``10.0.0.0/8`` stands for.

    Raises:
        AddressError: it is not one.
    """
    address_text, slash, bits = text.rpartition("/")
    address = parse_address(address_text) if slash else None
    if address is None or not _BITS.fullmatch(bits) or int(bits) > address.max_prefixlen:
        raise AddressError(f"{text[:_LONGEST]!r} is not a network such as 10.0.0.0/8")
    return NetworkPrefix(address, int(bits))


def is_loopback(address: Address) -> bool:
    """Return whether packets to the address stay on the node."""
    return int(address) >> 24 == 127 if isinstance(address, IPv4Address) else int(address) == 1


def is_link_local_unicast(address: Address) -> bool:
    """Return whether the address is of 169.254.0.0/16 or fe80::/10."""
    if isinstance(address, IPv4Address):
        return int(address) >> 16 == 0xA9FE
    return int(address) >> 118 == 0xFE80 >> 6


def is_link_local_multicast(address: Address) -> bool:
    """Return whether the address is of 224.0.0.0/24 or ff02::/16, whatever the flags."""
    if isinstance(address, IPv4Address):
        return int(address) >> 8 == 0xE00000
    return int(address) >> 112 & 0xFF0F == 0xFF02


def is_global_unicast(address: Address) -> bool:
    """Return whether the address is one of a single interface, private ones included."""
    multicast_bits = (28, 0xE) if isinstance(address, IPv4Address) else (120, 0xFF)
    multicast = int(address) >> multicast_bits[0] == multicast_bits[1]
    ordinary = not (is_loopback(address) or multicast or is_link_local_unicast(address))
    return ordinary and int(address) != 0 and address != _BROADCAST
