# SPDX-License-Identifier: Apache-2.0
"""Which sections shall run, and where do their results go?"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report, runner

#: Each module has a SECTION; it is imported only when it is asked for.
SECTIONS = {
    "queue": "benchmarks.queue",
    "postgres": "benchmarks.postgres",
    "scheduling": "benchmarks.scheduling",
    "admission": "benchmarks.admission",
    "journal": "benchmarks.journal",
    "daemon": "benchmarks.daemon",
    "planning": "benchmarks.planning",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sections; 1 if a bound is missed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.only and options.save:
        parser.error("--save keeps whole sections; leave --only out")
    if options.smoke and options.save:
        parser.error("--save keeps full measurements; leave --smoke out")
    try:
        sections = _load(options.sections, options.only, smoke=options.smoke)
    except ValueError as error:
        parser.error(str(error))
    given = sys.argv[1:] if arguments is None else arguments
    around = report.Circumstances.now(" ".join(["python -m benchmarks", *given]))
    results = []
    for section in sections:
        result = runner.run_section(section, smoke=options.smoke, tell=_tell)
        results.append(result)
        print(report.to_text(result), flush=True)
        if options.save:
            print(*(f"Wrote {path}." for path in report.save(result, around)), sep="\n")
    if options.json is not None:
        report.write_json(options.json, report.to_document(results, around))
    return runner.exit_code(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure sections of the engine; exit 1 if a bound is missed.",
    )
    parser.add_argument("sections", nargs="+", metavar="SECTION", choices=SECTIONS)
    parser.add_argument(
        "--smoke", action="store_true", help="small sizes and relaxed bounds, for CI"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument(
        "--save", action="store_true", help=f"keep the results in {report.RESULTS.name}/"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="SCENARIO",
        help="run this scenario alone; may be repeated",
    )
    return parser


def _load(
    names: Sequence[str], only: Sequence[str] | None, *, smoke: bool = False
) -> list[runner.Section]:
    sections: list[runner.Section] = []
    for name in dict.fromkeys(names):
        section: runner.Section = importlib.import_module(SECTIONS[name]).SECTION
        if only:
            section = section.only(only)
        elif smoke:
            section = section.for_smoke()
        sections.append(section)
    return sections


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
