# SPDX-License-Identifier: Apache-2.0
"""What do the five fields of a cron expression say?"""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim, CronSimError

from penstock.errors import UsageError

CRON_LENGTH_MAX = 200  # characters
SHOWN_MAX = 80  # characters of an expression in a sentence

_FIELDS = "minute hour day-of-month month day-of-week"
_LOOKED_FROM = datetime(2000, 1, 1)  # an expression that has no date in 50 years from here has none


def read_cron(expression: str) -> tuple[str, CronSim]:
    """An expression with single spaces, and its fields; UsageError if it matches no date."""
    given: object = expression  # whatever a user without a type checker wrote
    fields = expression.split() if isinstance(given, str) else []
    shown = expression[:SHOWN_MAX] if isinstance(given, str) else given
    if len(fields) != 5 or len(expression) > CRON_LENGTH_MAX:
        raise UsageError(
            f"The cron expression {shown!r} must have five fields ({_FIELDS}), such as "
            '"0 3 * * 1-5"; for an interval write a timedelta or a number of seconds.'
        )
    text = " ".join(fields)
    try:
        sim = CronSim(text, _LOOKED_FROM)
        next(sim)
    except CronSimError as error:
        raise UsageError(
            f"The cron expression {shown!r} is wrong: {_problem(str(error), fields)}."
        ) from None
    except (AssertionError, ValueError, IndexError, TypeError):
        raise UsageError(
            f"The cron expression {shown!r} cannot be read; its fields are: {_FIELDS}."
        ) from None
    except StopIteration:
        raise UsageError(
            f"The cron expression {shown!r} matches no date until 2050; such a day does not exist."
        ) from None
    return text, sim


def is_rhythm(sim: CronSim) -> bool:
    """Does it run in every hour?"""
    return len(sim.hours) == 24


def _problem(said: str, fields: list[str]) -> str:
    name = said.removeprefix("Bad ").lower()
    names = _FIELDS.split()
    if name not in names:
        return f"{said[:1].lower()}{said[1:]}"
    value = fields[names.index(name)]
    if name == "day-of-month" and value.replace(",", "").replace("-", "").isdigit():
        return f"its {name} is {value!r}, which matches no date in those months"
    return f"its {name} cannot be {value!r}"
