"""Kubernetes' own functions for quantities, versions, patterns and addresses, by the names of their overloads."""

from collections.abc import Callable, Mapping
from typing import Final

from .addresses import (
    Address,
    AddressError,
    NetworkPrefix,
    is_global_unicast,
    is_link_local_multicast,
    is_link_local_unicast,
    is_loopback,
    parse_address,
    parse_network,
)
from .conversions import Implementation
from .errors import EvaluationError, ExpressionNotUnderstoodError
from .patterns import pattern
from .quantities import Quantity, QuantityFormatError, QuantityRangeError, parse_quantity
from .values import MIN_INT, Value
from .versions import Version, VersionError, normalised, parse_version


def _quantity(text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except QuantityRangeError as error:
        raise ExpressionNotUnderstoodError(str(error)) from None
    except QuantityFormatError as error:
        raise EvaluationError(str(error)) from None


def _as_integer(quantity: Quantity) -> int:
    whole = quantity.as_integer()
    if whole is None:
        raise EvaluationError("the quantity is not an integer")
    return whole


def _approximate(quantity: Quantity) -> float:
    try:
        return quantity.approximate()
    except QuantityRangeError as error:
        raise ExpressionNotUnderstoodError(str(error)) from None


def _sum(quantity: Quantity, addend: Quantity | int) -> Quantity:
    return quantity.plus(addend if isinstance(addend, Quantity) else Quantity(addend))


def _difference(quantity: Quantity, subtrahend: Quantity | int) -> Quantity:
    other = subtrahend if isinstance(subtrahend, Quantity) else Quantity(subtrahend)
    if other.value == MIN_INT:  # upstream negates it, which overflows
        raise ExpressionNotUnderstoodError("sub() of the smallest int is not supported")
    return quantity.plus(other, sign=-1)


def _unshared(function: Implementation) -> Implementation:
    def checked(quantity: Quantity, other: Quantity | int) -> Value:
        if quantity.decimal:
            raise ExpressionNotUnderstoodError(
                "add() and sub() on a capacity with a fraction or above 2**63 are not supported: upstream changes it"
            )
        return function(quantity, other)

    return checked


def _version(text: str, normalise: bool = False) -> Version:
    try:
        return parse_version(normalised(text) if normalise else text)
    except VersionError as error:
        raise EvaluationError(str(error)) from None


def _is_version(text: str, normalise: bool = False) -> bool:
    try:
        _version(text, normalise)
    except EvaluationError:
        return False
    return True


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except AddressError as error:
        raise EvaluationError(str(error)) from None


def _network(text: str) -> NetworkPrefix:
    try:
        return parse_network(text)
    except AddressError as error:
        raise EvaluationError(str(error)) from None


def _succeeds(parse: Callable[[str], object]) -> Implementation:
    def test(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return test


def _wrapped(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


RESOURCES: Final[Mapping[str, Implementation]] = {
    "string_to_quantity": _quantity,
    "is_quantity_string": _succeeds(_quantity),
    "quantity_sign": lambda quantity: (quantity.value > 0) - (quantity.value < 0),
    "quantity_is_greater_than": lambda quantity, other: quantity.compare(other) > 0,
    "quantity_is_less_than": lambda quantity, other: quantity.compare(other) < 0,
    "quantity_compare_to": lambda quantity, other: quantity.compare(other),
    "quantity_get_float": _approximate,
    "quantity_get_int": _as_integer,
    "quantity_is_integer": lambda quantity: quantity.as_integer() is not None,
    "quantity_add": _unshared(_sum),
    "quantity_add_int": _unshared(_sum),
    "quantity_sub": _unshared(_difference),
    "quantity_sub_int": _unshared(_difference),
    "string_to_semver": _version,
    "string_bool_to_semver": _version,
    "is_semver_string": _is_version,
    "is_semver_string_bool": _is_version,
    "semver_is_greater_than": lambda version, other: version.compare(other) > 0,
    "semver_is_less_than": lambda version, other: version.compare(other) < 0,
    "semver_compare_to": lambda version, other: version.compare(other),
    "semver_major": lambda version: _wrapped(version.major),
    "semver_minor": lambda version: _wrapped(version.minor),
    "semver_patch": lambda version: _wrapped(version.patch),
    "matches": lambda text, source: pattern(source).matches(text),
    "matches_string": lambda text, source: pattern(source).matches(text),
    "string_find_string": lambda text, source: pattern(source).find(text),
    "string_find_all_string": lambda text, source: pattern(source).find_all(text),
    "string_find_all_string_int": lambda text, source, count: pattern(source).find_all(text, count),
}
NETWORKS: Final[Mapping[str, Implementation]] = {
    "string_to_ip": _address,
    "is_ip": _succeeds(_address),
    "ip_is_canonical": lambda text: str(_address(text)) == text,
    "ip_to_string": str,
    "ip_family": lambda address: address.version,
    "ip_is_unspecified": lambda address: int(address) == 0,
    "ip_is_loopback": is_loopback,
    "ip_is_link_local_multicast": is_link_local_multicast,
    "ip_is_link_local_unicast": is_link_local_unicast,
    "ip_is_global_unicast": is_global_unicast,
    "string_to_cidr": _network,
    "is_cidr": _succeeds(_network),
    "cidr_to_string": str,
    "cidr_contains_ip_string": lambda network, text: network.contains(_address(text)),
    "cidr_contains_ip_ip": lambda network, address: network.contains(address),
    "cidr_contains_cidr_string": lambda network, text: network.contains_network(_network(text)),
    "cidr_contains_cidr": lambda network, other: network.contains_network(other),
    "cidr_ip": lambda network: network.address,
    "cidr_prefix_length": lambda network: network.bits,
    "cidr_masked": lambda network: network.masked(),
}
FRESH_QUANTITIES: Final[Mapping[str, Implementation]] = {
    "quantity_add": _sum,
    "quantity_add_int": _sum,
    "quantity_sub": _difference,
    "quantity_sub_int": _difference,
}
"""For a target that nothing else refers to: upstream's ``add`` and ``sub`` change large targets."""
