# SPDX-License-Identifier: Apache-2.0
"""What does a person, or a machine, read about preflights?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redaction.secrets import redacted
from penstock.supervisor.protocol import Check, Checked, unit_name
from penstock.terminal_text import escaped

ROWS_MAX = 200  # of the table; the rest is counted
NAME_WIDTH_MAX = 60


def check_lines(checks: Sequence[Check], checked: Checked) -> list[str]:
    """A row for each check that was told of: the failed ones first, then by name."""
    rows = sorted(checks, key=lambda check: (check.passed, check.name, check.partition))
    shown = rows[:ROWS_MAX]
    names = [_unit(check) for check in shown]
    width = min(max(map(len, names), default=0), NAME_WIDTH_MAX)
    lines = []
    for check, name in zip(shown, names, strict=True):
        word = "passed" if check.passed else "FAILED"
        lines.append(f"{word}  {name:<{width}}  {escaped(redacted(check.problem))}".rstrip())
        if check.hint and not check.passed:
            lines.append(f"{'':8}{'':<{width}}  {escaped(redacted(check.hint))}")
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown):,} more")
    lines.append(_sum(checked))
    return lines


def checks_document(checks: Sequence[Check], checked: Checked) -> dict[str, object]:
    """The same for a machine."""
    return {
        "passed": checked.passed,
        "failed": checked.failed,
        "preflights": [
            {
                "name": check.name,
                "partition": check.partition or None,
                "passed": check.passed,
                "problem": redacted(check.problem) or None,
                "hint": redacted(check.hint) or None,
            }
            for check in sorted(checks, key=lambda check: (check.name, check.partition))
        ],
    }


def _unit(check: Check) -> str:
    return escaped(unit_name(check.name, check.partition))


def _sum(checked: Checked) -> str:
    total = checked.passed + checked.failed
    if not total:
        return "The app has no preflights."
    if not checked.failed:
        return "The preflight has passed." if total == 1 else f"All {total:,} preflights passed."
    return f"{checked.failed:,} of {total:,} preflights failed; nothing else was started."
