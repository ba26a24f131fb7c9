# SPDX-License-Identifier: Apache-2.0
"""docs/reference/errors.md: what is raised, what ends an attempt, and how do commands end?"""

from __future__ import annotations

import inspect

from penstock import errors
from penstock.cli import main
from penstock.model.job import ErrorCategory
from tools.reference.remarks import table
from tools.reference.states import values

HEAD = """# Errors

Made from the code by `make reference`; do not edit by hand. All are in `penstock.errors`. A
message is one sentence: what is wrong, where, and what to do.
"""

CATEGORIES = """## What ended an attempt

`penstock queue show KEY` names the category; a charged attempt counts for `max_attempts`.
"""


def page() -> str:
    """The whole page."""
    _, _, tree = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")
    parts = [
        HEAD,
        tree,
        "## Each of them\n\n" + table(("error", "means", "carries"), _rows()),
        CATEGORIES,
        values(ErrorCategory, "its end was the fault of"),
        "## Exit codes\n\n" + table(("code", "means"), exit_codes()),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def exit_codes() -> list[tuple[str, str]]:
    """As the command line's own source lists them."""
    _, _, listed = inspect.cleandoc(main.__doc__ or "").partition("\n\n")
    pairs = [entry.split(maxsplit=1) for entry in " ".join(listed.split()).rstrip(".").split(" · ")]
    return [(code, means) for code, means in pairs]


def _rows() -> list[tuple[str, str, str]]:
    rows = []
    for name, error in vars(errors).items():
        is_ours = isinstance(error, type) and issubclass(error, errors.PenstockError)
        if is_ours and not name.startswith("_"):
            says = " ".join(inspect.cleandoc(error.__doc__ or "").split())
            rows.append((f"`{name}`", says, _carried(error)))
    return rows


def _carried(error: type[Exception]) -> str:
    """The attributes that its constructor takes, beside the message."""
    if not inspect.isfunction(error.__init__):
        return ""
    _, *names = inspect.signature(error.__init__).parameters
    return ", ".join(f"`{name}`" for name in names if name != "message")
