"""How Kubernetes JSON becomes structs."""

from msgspec import Struct


class Base(Struct, rename="camel", omit_defaults=True):
    """Common decoding rules: camelCase on the wire, defaults left out when encoded."""


class Value(Struct, rename="camel", omit_defaults=True, frozen=True):
    """The same rules for parts that are compared and hashed."""
