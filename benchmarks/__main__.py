# SPDX-License-Identifier: Apache-2.0
"""Which sections shall run, and where do their results go?"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import paired, report, runner
from benchmarks.paired import checkout
from benchmarks.paired.checkout import NoBaseline

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
#: What is measured beside an older commit alone.
ONLY_COMPARED = tuple(name for name in paired.SECTIONS if name not in SECTIONS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sections; 1 if a bound is missed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.only and options.save:
        parser.error("--save keeps whole sections; leave --only out")
    if options.smoke and options.save:
        parser.error("--save keeps full measurements; leave --smoke out")
    given = sys.argv[1:] if arguments is None else arguments
    around = report.Circumstances.now(" ".join(["python -m benchmarks", *given]))
    try:
        _check_comparison(options)
        if options.baseline is None:
            sections = _load(options.sections, options.only, smoke=options.smoke)
        else:
            sections = [_comparison(options)]
    except ValueError as error:
        parser.error(str(error))
    except NoBaseline as error:
        _tell(str(error))
        return 2
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
    parser.add_argument(
        "sections", nargs="+", metavar="SECTION", choices=[*SECTIONS, *ONLY_COMPARED]
    )
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
    parser.add_argument(
        "--baseline",
        metavar="REF",
        help="measure beside this older commit, in turns, and tell the ratios "
        f"({', '.join(paired.SECTIONS)})",
    )
    parser.add_argument(
        "--pairs", type=int, metavar="N", help="how often both are measured; 10 unless told"
    )
    return parser


def _check_comparison(options: argparse.Namespace) -> None:
    """ValueError if what was asked does not fit together."""
    if options.baseline is None:
        only = [name for name in options.sections if name in ONLY_COMPARED]
        if only:
            raise ValueError(f"{only[0]} is only compared; add --baseline REF")
        if options.pairs is not None:
            raise ValueError("--pairs counts the pairs of a comparison; add --baseline REF")
        return
    alone = [name for name in options.sections if name not in paired.SECTIONS]
    if alone:
        can = ", ".join(paired.SECTIONS)
        raise ValueError(f"{alone[0]} is not compared with a baseline; these are: {can}")
    if options.only:
        raise ValueError("--baseline compares whole sections; leave --only out")
    if options.pairs is not None and options.pairs < 1:
        raise ValueError(f"--pairs is 1 or more, got {options.pairs}")


def _comparison(options: argparse.Namespace) -> runner.Section:
    """The sections beside those of an older commit, which is made ready here."""
    from benchmarks.paired import comparison

    commit = checkout.resolve(options.baseline)
    _tell(f"Making {commit[:12]} ready …")
    old, new = checkout.old_checkout(commit), checkout.this_checkout()
    for side in (old, new):
        side.check()
    usual = comparison.PAIRS_IN_SMOKE if options.smoke else comparison.PAIRS
    return comparison.section(options.sections, old, new, options.pairs or usual, _tell)


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
