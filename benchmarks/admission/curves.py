# SPDX-License-Identifier: Apache-2.0
"""How does the limit move over time? Three scenarios, drawn beside a peer and the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.admission.cases import CASES, CONGESTION, STEP
from benchmarks.admission.chart import Curve, draw
from benchmarks.admission.scoring import OURS, course
from benchmarks.report import RESULTS
from benchmarks.runner import Outcome, Setup, Table

SEED = 1_001
PEER = "Data Designer"
COLUMNS = ("provider", "controller", "mean limit", "least", "most", "file")


@dataclass(frozen=True, slots=True)
class Drawing:
    """One chart."""

    case: str
    title: str
    file: str
    truth: Callable[[float], float]
    truth_name: str
    peer: str = PEER


DRAWINGS = (
    Drawing(
        STEP,
        "A hidden limit of 64 at once falls to 16 and comes back",
        "admission-step.svg",
        lambda time: 16 if 120 <= time < 300 else 64,
        "the provider's limit",
    ),
    Drawing(
        "P1 C=200 RA1",
        "A hidden limit of 200 at once, from cold",
        "admission-cold.svg",
        lambda _: 200,
        "the provider's limit",
    ),
    Drawing(
        CONGESTION,
        "A server that slows down above 32 at once and never refuses",
        "admission-congestion.svg",
        lambda _: 32,
        "the server's knee",
        "Gradient2",
    ),
)


def measure(setup: Setup) -> Outcome:
    """Draw the limit over time; a smoke run draws into its own folder."""
    folder = setup.folder if setup.smoke else RESULTS
    rows = []
    for drawing in DRAWINGS[: setup.size(len(DRAWINGS), smoke=1)]:
        case = next(case for case in CASES if case.name == drawing.case)
        times = [0.5 * number for number in range(2 * case.seconds)]
        truth = [(time, drawing.truth(time)) for time in times]
        lines = [Curve(drawing.truth_name, truth, is_truth=True)]
        for name in (OURS, drawing.peer):
            counts, _ = course(case, name, SEED)
            lines.append(Curve(name, counts.limits))
            values = [value for _, value in counts.limits]
            mean = sum(values) / len(values)
            rows.append((case.name, name, mean, min(values), max(values), drawing.file))
        text = draw(drawing.title, "requests in flight that the client allows itself", lines)
        (folder / drawing.file).write_text(text)
    return Outcome((), (Table("The limit over time", COLUMNS, tuple(rows)),))
