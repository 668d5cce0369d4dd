"""Quantities and bandwidths: exact, rounded up, and refused when they make no sense."""

from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.quantity import (
    MAX_BANDWIDTH_MBITS,
    MAX_VALUE,
    QuantityError,
    parse_bandwidth,
    parse_quantity,
)

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
exponents = st.builds("{}{}".format, st.sampled_from("eE"), st.integers(-20, 20))
numbers = st.one_of(
    st.integers(0, 10**9).map(str),
    st.builds("{}.{}".format, st.integers(0, 10**6), st.integers(0, 10**6)),
    st.integers(0, 999).map("{}.".format),
    st.integers(0, 999).map(".{}".format),
)


def ceiling(value: Decimal) -> int:
    with localcontext(prec=200):
        return int(value.to_integral_value(ROUND_CEILING))


@given(st.sampled_from(["", "+"]), numbers, st.sampled_from(list(SUFFIXES)) | exponents, st.sampled_from([1, 1000]))
def test_a_quantity_is_what_it_says_rounded_up(sign: str, number: str, suffix: str, scale: int) -> None:
    with localcontext(prec=200):
        factor = SUFFIXES[suffix] if suffix in SUFFIXES else Decimal("1" + suffix)
        expected = ceiling(Decimal(number) * factor * scale)
    text = sign + number + suffix
    if expected > MAX_VALUE:
        with pytest.raises(QuantityError, match="larger"):
            parse_quantity(text, scale)
    else:
        assert parse_quantity(text, scale) == expected


@pytest.mark.parametrize(
    ("text", "scale", "amount"),
    [
        ("100m", 1000, 100),
        ("0.1", 1000, 100),
        ("2", 1000, 2000),
        ("1.5", 1000, 1500),
        ("128974848", 1, 128974848),
        ("129e6", 1, 129_000_000),
        ("129M", 1, 129_000_000),
        ("123Mi", 1, 128_974_848),
        ("128974848000m", 1, 128_974_848),
        ("1n", 1000, 1),
        ("0", 1000, 0),
        ("-0", 1, 0),
        (8, 1, 8),
        (0.5, 1000, 500),
        (1e-7, 1000, 1),
        ("1E", 1, None),
        ("1E3", 1, 1000),
    ],
)
def test_quantities_of_the_documentation(text: str | float, scale: int, amount: int | None) -> None:
    if amount is None:
        with pytest.raises(QuantityError):
            parse_quantity(text, scale)
    else:
        assert parse_quantity(text, scale) == amount


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "1x",
        "Gi",
        "1 Gi",
        "1KI",
        "1ki",
        "1K",
        "1mi",
        "--1",
        "1e",
        "1e1.5",
        "1e3Ki",
        "0x10",
        "1_000",
        "1,5",
        "nan",
        "inf",
        "1e9999",
        "٣",
        "9" * 5000,
        "1." + "9" * 5000,
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_a_negative_quantity_is_refused_and_named() -> None:
    with pytest.raises(QuantityError, match="'-3' is negative"):
        parse_quantity("-3")


@pytest.mark.parametrize("text", ["100GB", "100gB", "100 GBps", "100GB/s", "100GiB", "100MB"])
def test_a_bandwidth_in_bytes_is_refused(text: str) -> None:
    """Read as bits, it would be an eighth of what was meant."""
    with pytest.raises(QuantityError, match="B stands for bytes: write bits"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["100Gb", "100gb", "100 Gbps", "100Gbit", "100GBit", "100gbit/s", "100Gbits"])
def test_a_bandwidth_in_bits(text: str) -> None:
    assert parse_bandwidth(text) == 100_000


@given(st.text(max_size=20))
def test_no_text_makes_the_reader_fall_over(text: str) -> None:
    for parse in (parse_quantity, parse_bandwidth):
        try:
            assert parse(text) >= 0
        except QuantityError as error:
            assert str(error)


# ---------------------------------------------------------------- bandwidth


@pytest.mark.parametrize(
    ("text", "mbits"),
    [
        ("100Gb", 100_000),
        ("200Gb", 200_000),
        ("200Gbps", 200_000),
        ("400Gbit", 400_000),
        ("400Gbit/s", 400_000),
        ("1.6Tb", 1_600_000),
        ("1.5Gb", 1_500),
        ("800 Gb", 800_000),
        ("100gbps", 100_000),
        ("250Mb", 250),
        ("1500Kb", 2),
        ("1Kb", 1),
    ],
)
def test_bandwidths(text: str, mbits: int) -> None:
    assert parse_bandwidth(text) == mbits


units = {"K": Decimal("0.001"), "M": Decimal(1), "G": Decimal(1000), "T": Decimal(1000_000)}


@given(
    st.decimals(min_value=0, max_value=10**7, places=3),
    st.sampled_from(list(units)),
    st.sampled_from(["b", "bps", "bit", "bit/s", "bits"]),
)
def test_a_bandwidth_is_what_it_says_rounded_up(number: Decimal, unit: str, word: str) -> None:
    expected = ceiling(number * units[unit])
    if 0 < expected <= MAX_BANDWIDTH_MBITS:
        assert parse_bandwidth(f"{number}{unit}{word}") == expected
    else:
        with pytest.raises(QuantityError):
            parse_bandwidth(f"{number}{unit}{word}")


@pytest.mark.parametrize(
    "text",
    ["", "100", "100G", "fast", "-100Gb", "0Gb", "0.0Gb", "1001Tb", "100Gb/s/s", "1e3Gb", "٣Gb", "9" * 5000 + "Gb"],
)
def test_what_is_no_bandwidth_is_refused_with_an_example_or_the_range(text: str) -> None:
    with pytest.raises(QuantityError, match=r"such as 100Gb|is not between"):
        parse_bandwidth(text)
