# SPDX-License-Identifier: Apache-2.0
"""How is money written in a file? As decimals, exactly: a float would not be what was written."""

from __future__ import annotations

import re
from decimal import Decimal

from penstock.model.spending import MICROS

USD_MAX = 10**9  # of a budget or a price; more is a slip of the pen
TOKEN_PRICE_MAX = 100_000  # dollars of a million tokens; more is a slip of the pen as well
DECIMALS = 6  # a micro-dollar is the smallest sum

_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


def parse_price(value: object) -> Decimal:
    """Dollars, from 0.

    Raises:
        ValueError: a sentence without its subject ("must be …"), for the field's name in front.
    """
    dollars = _parsed(value)
    if dollars < 0:
        raise ValueError("must be >= 0")
    return dollars


def _parsed(value: object) -> Decimal:
    dollars = _decimal(value)
    if dollars is None or not dollars.is_finite():
        raise ValueError("must be a number of dollars, such as 12.5")
    if dollars > USD_MAX:
        raise ValueError(f"must be <= {USD_MAX}")
    micros = dollars * MICROS
    if micros != micros.to_integral_value():
        raise ValueError(f"must have at most {DECIMALS} decimals")
    return dollars


def parse_dollars(value: object) -> Decimal:
    """Dollars, more than 0: a budget of nothing would be a run that does nothing."""
    dollars = _parsed(value)
    if dollars <= 0:
        raise ValueError("must be > 0 (without it there is no limit)")
    return dollars


def parse_token_price(value: object) -> Decimal:
    """Dollars of a million tokens, from 0."""
    dollars = parse_price(value)
    if dollars > TOKEN_PRICE_MAX:
        raise ValueError(f"must be <= {TOKEN_PRICE_MAX} dollars of a million tokens")
    return dollars


def micros_of(dollars: Decimal) -> int:
    """The same in micro-dollars."""
    return int(dollars * MICROS)


def shown(dollars: Decimal) -> str:
    """As people write it: no exponent, no zeros at the end."""
    text = f"{dollars:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal | int):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))  # the shortest that is this float: what was written
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return Decimal(value.strip())
    return None
