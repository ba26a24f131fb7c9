# SPDX-License-Identifier: Apache-2.0
"""How are results shown, written down and compared with the machine they come from?"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

from benchmarks.measuring import ROOT
from benchmarks.runner import SMOKE_FACTOR, Cell, Check, Kind, SectionResult, Table
from penstock.stores.sqlite.location_check import file_system_of

RESULTS = ROOT / "benchmarks" / "results"
SPREAD_COLUMNS = ("what", "unit", "median", "min", "max", "deviation", "runs")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where, when and of what the figures are."""

    machine: dict[str, str | int | float]
    commit: str
    command: str
    date: str

    @classmethod
    def now(cls, command: str) -> Circumstances:
        return cls(
            machine=describe_machine(),
            commit=current_commit(),
            command=command,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def describe_machine() -> dict[str, str | int | float]:
    """What a reader must know to compare figures; nothing that names the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": file_system_of(Path(tempfile.gettempdir()).resolve()),
        "load_before": round(os.getloadavg()[0], 2),
    }


def current_commit() -> str:
    """The commit that was measured, with a `+` if the tree differs from it."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
        changed = _git("status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def spread(what: str, unit: str, values: Sequence[float]) -> tuple[Cell, ...]:
    """One row of a table of SPREAD_COLUMNS."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    middle = statistics.median(values)
    return (what, unit, middle, min(values), max(values), deviation, len(values))


def to_document(results: Sequence[SectionResult], around: Circumstances) -> dict[str, Any]:
    """The results as JSON; sections that were run together share one document."""
    return {
        "section": " ".join(result.section for result in results),
        "smoke": any(result.smoke for result in results),
        "machine": around.machine,
        "commit": around.commit,
        "command": around.command,
        "date": around.date,
        "seconds": round(sum(result.took_seconds for result in results), 1),
        "checks": [
            {
                "name": check.name,
                "value": check.value,
                "bound": check.bound,
                "kind": str(check.kind),
                "ok": check.ok,
            }
            for result in results
            for check in result.outcome.checks
        ],
        "tables": [
            {"title": table.title, "columns": list(table.columns), "rows": [*map(list, table.rows)]}
            for result in results
            for table in result.outcome.tables
        ],
        "errors": [error for result in results for error in result.errors],
    }


def to_text(result: SectionResult) -> str:
    """One section for a terminal."""
    blocks = [_text_table(table) for table in result.outcome.tables]
    if result.smoke:
        blocks.append(
            f"Smoke mode: small sizes, timing bounds relaxed by a factor of {SMOKE_FACTOR:g}."
        )
    blocks.append(_text_table(check_table(result)))
    blocks += [f"This scenario broke: {error}" for error in result.errors]
    blocks.append(verdict(result))
    return "\n\n".join(blocks)


def verdict(result: SectionResult) -> str:
    """What is missed, in one paragraph."""
    checks = result.outcome.checks
    lines = [f"Missed {check.kind}: {_sentence(check)}" for check in checks if not check.ok]
    met = sum(check.ok for check in checks)
    lines.append(
        f"{result.section}: {met} of {len(checks)} checks met in {result.took_seconds:.0f} s."
    )
    return "\n".join(lines)


def _sentence(check: Check) -> str:
    return f"{check.name}: {_cell(check.value)}, must be {check.sense} {_cell(check.bound)}"


def check_table(result: SectionResult) -> Table:
    """The checks as a table."""
    rows = tuple(
        (
            check.name,
            check.value,
            f"{check.sense} {_cell(check.bound)}",
            str(check.kind),
            "ok" if check.ok else ("FAILED" if check.kind is Kind.BOUND else "missed"),
        )
        for check in result.outcome.checks
    )
    return Table(
        f"Checks of {result.section}", ("check", "value", "bound", "kind", "verdict"), rows
    )


def to_markdown(result: SectionResult, around: Circumstances) -> str:
    """One section as a page."""
    machine = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in around.machine.items()
    )
    lines = [
        f"# Benchmarks: {result.section}",
        "",
        f"- command: `{around.command}`",
        f"- commit: {around.commit}",
        f"- date: {around.date}",
        f"- machine: {machine}",
        f"- took: {result.took_seconds:.0f} s",
    ]
    if result.smoke:
        lines.append(f"- smoke mode: small sizes, timing bounds relaxed ×{SMOKE_FACTOR:g}")
    for table in (check_table(result), *result.outcome.tables):
        lines += [
            "",
            f"## {table.title}",
            "",
            _row(table.columns),
            _row("---" for _ in table.columns),
        ]
        lines += [_row(map(_cell, row)) for row in table.rows]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save(result: SectionResult, around: Circumstances, folder: Path = RESULTS) -> tuple[Path, Path]:
    """Write a section's JSON and Markdown; the paths of both."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{result.section}.json", folder / f"{result.section}.md"
    write_json(paths[0], to_document([result], around))
    paths[1].write_text(to_markdown(result, around), encoding="utf-8")
    return paths


def _text_table(table: Table) -> str:
    rows = [table.columns, *(tuple(map(_cell, row)) for row in table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    numeric = [
        all(isinstance(row[column], int | float) for row in table.rows)
        for column in range(len(table.columns))
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([table.title, "-" * len(lines[0]), *lines])


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
