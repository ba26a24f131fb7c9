# SPDX-License-Identifier: Apache-2.0
"""The comparison with an older commit: its statistics, its order, its checkouts, its workloads."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import measuring, paired, runner
from benchmarks.paired import (
    checkout,
    comparison,
    figures,
    journal,
    planning,
    queue,
    scheduling,
    startup,
)
from benchmarks.paired.checkout import NoBaseline, Side
from benchmarks.paired.figures import Better, Figure, Pairs
from benchmarks.report import to_text
from benchmarks.runner import Scenario, Section, Setup
from penstock.testing import ProviderRules, SimulatedProvider

PUBLIC = {"penstock", "penstock.calendars", "penstock.errors", "penstock.testing"}
PROBES = (journal, planning, queue, scheduling, startup)
OLD = replace(checkout.this_checkout(), name="old", commit="a")
NEW = replace(checkout.this_checkout(), name="new", commit="b")
RATE, CPU = ("drain", "jobs/s", Better.HIGHER), ("drain", "CPU µs/job", Better.LOWER)


def quiet(_: str) -> None: ...


# ── Statistics ───────────────────────────────────────────────────────────────────────────────────


def test_a_ratio_of_more_than_one_is_better_for_rates_and_for_costs() -> None:
    assert Better.HIGHER.ratio(old=100, new=200) == 2
    assert Better.LOWER.ratio(old=100, new=200) == 0.5


def test_a_figure_is_judged_by_the_median_of_its_pairs_ratios() -> None:
    # The machine got ten times slower for one pair: for both alike. The medians alone would differ.
    pairs = Pairs(*RATE, old=(100, 10, 100, 100), new=(110, 11, 90, 105))

    assert pairs.ratios == pytest.approx([1.1, 1.1, 0.9, 1.05])
    assert pairs.check("queue").value == pytest.approx(1.075)


def test_the_row_of_a_figure_has_medians_quartiles_and_extremes() -> None:
    pairs = Pairs(*CPU, old=(10, 10, 10, 10, 10), new=(10, 5, 20, 8, 12.5))
    row = dict(zip(figures.COLUMNS, pairs.row(), strict=True))

    assert row["ratio is"] == "old ÷ new"
    assert (row["old"], row["new"]) == (10, 10)
    assert row["median ratio"] == 1
    assert (row["lower quartile"], row["upper quartile"]) == pytest.approx((0.8, 1.25))
    assert (row["min"], row["max"]) == (0.5, 2)


def test_one_pair_has_no_spread() -> None:
    assert figures.quartiles([1.5]) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("kind", "new", "code"),
    [(RATE, 95.0, 0), (RATE, 94.9, 1), (CPU, 105.2, 0), (CPU, 106.0, 1)],
)
def test_a_median_below_the_bound_is_missed_and_ends_with_1(
    kind: tuple[str, str, Better], new: float, code: int
) -> None:
    outcome = figures.to_outcome("queue", [Pairs(*kind, old=(100.0,), new=(new,))])
    section = Section("baseline", (Scenario("queue", lambda _: outcome),))
    result = runner.run_section(section, smoke=False)

    assert runner.exit_code([result]) == code
    assert ("Missed bound: queue: drain" in to_text(result)) is bool(code)


def test_figures_come_back_from_a_process_as_they_were() -> None:
    made = figures.rate_and_cpu("drain", "job", 10, measuring.Spent(wall=2.0, cpu=1e-3))
    answer = json.loads(json.dumps(figures.to_answer(made)))

    assert figures.from_answer(answer) == made
    assert made == [Figure(*RATE, 5), Figure(*CPU, 100)]


def test_a_figure_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="drain, jobs/s"):
        Figure(*RATE, 0)


def test_sides_that_answer_with_other_figures_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same figures"):
        figures.paired([([Figure(*RATE, 1)], [Figure(*CPU, 1)])])


# ── Pairs ────────────────────────────────────────────────────────────────────────────────────────


def test_every_second_pair_begins_with_the_new_side(tmp_path: Path) -> None:
    order: list[str] = []

    def workload(name: str) -> Callable[[Side, Setup], list[Figure]]:
        def measure(side: Side, setup: Setup) -> list[Figure]:
            order.append(f"{name} {side.name}")
            return [replace(Figure(*RATE, len(order)), what=name)]

        return measure

    setup = Setup(smoke=True, folder=tmp_path)
    workloads = (workload("a"), workload("b"))
    outcome = comparison.compare("queue", workloads, (OLD, NEW), setup, 2, quiet)

    assert order == ["a old", "a new", "b old", "b new", "a new", "a old", "b new", "b old"]
    assert [check.value for check in outcome.checks] == pytest.approx(
        [(2 / 1 + 5 / 6) / 2, (4 / 3 + 7 / 8) / 2]
    )


def test_a_full_run_warms_up_both_sides_in_small(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    def workload(side: Side, setup: Setup) -> list[Figure]:
        seen.append((side.name, setup.smoke))
        return [Figure(*RATE, 1)]

    comparison.compare("q", (workload,), (OLD, NEW), Setup(smoke=False, folder=tmp_path), 1, quiet)

    assert seen == [("old", True), ("new", True), ("old", False), ("new", False)]


def test_a_side_that_fails_is_named(tmp_path: Path) -> None:
    def workload(side: Side, setup: Setup) -> list[Figure]:
        raise measuring.ProbeFailed("no such table")

    with pytest.raises(measuring.ProbeFailed, match="old side, a: no such table"):
        comparison.compare(
            "q", (workload,), (OLD, NEW), Setup(smoke=True, folder=tmp_path), 1, quiet
        )


# ── The command ──────────────────────────────────────────────────────────────────────────────────


def test_every_section_that_is_compared_has_workloads() -> None:
    assert tuple(comparison.WORKLOADS) == paired.SECTIONS


def test_a_baseline_that_does_not_exist_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["queue", "--baseline", "no-such-commit"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "This repository has no commit 'no-such-commit' to compare with.\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["import"], "import is only compared; add --baseline REF"),
        (["queue", "--pairs", "3"], "add --baseline REF"),
        (["admission", "--baseline", "HEAD"], "admission is not compared with a baseline"),
        (["queue", "--baseline", "HEAD", "--only", "drain"], "leave --only out"),
        (["queue", "--baseline", "HEAD", "--pairs", "0"], "--pairs is 1 or more, got 0"),
        (["queue", "--baseline", "HEAD", "--smoke", "--save"], "leave --smoke out"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    arguments: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_a_smoke_run_compares_both_sides_and_tells_their_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "resolve", lambda ref: ref)
    monkeypatch.setattr(checkout, "old_checkout", lambda ref: replace(OLD, commit=ref))
    path = tmp_path / "out.json"
    command.main(["queue", "--baseline", "0123456789ab", "--smoke", "--json", str(path)])

    document = json.loads(path.read_text())
    assert document["section"] == "baseline"
    assert document["errors"] == []
    sides, ratios = document["tables"]
    assert sides["rows"][0] == ["old", "0123456789ab"]
    assert [row[0] for row in sides["rows"]] == ["old", "new"]
    assert {(row[0], row[1]) for row in ratios["rows"]} >= {
        ("enqueue_many", "jobs/s"),
        ("enqueue_many", "CPU µs/job"),
        ("drain, 8 groups", "jobs/s"),
    }
    assert len(document["checks"]) == len(ratios["rows"])


# ── Checkouts ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits of a file."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text(f"{checkout.ENVIRONMENT}\n{checkout.FOLDER}\n")
    for text in ("old", "new"):
        (root / "file").write_text(text)
        git(root, "add", ".")
        git(root, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", text)
    return root


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_an_old_commit_is_checked_out_beside_the_working_tree_once(repository: Path) -> None:
    folder = checkout.worktree(checkout.resolve("HEAD~1", repository), repository)
    again = checkout.worktree(checkout.resolve("HEAD~1", repository), repository)

    assert again == folder
    assert (folder / "file").read_text() == "old"
    assert (repository / "file").read_text() == "new"
    assert git(repository, "status", "--porcelain") == ""


def test_an_environment_that_was_made_is_used_again(repository: Path) -> None:
    commit = checkout.resolve("HEAD~1", repository)
    made = checkout.worktree(commit, repository) / checkout.ENVIRONMENT / "ok"
    made.parent.mkdir()
    made.touch()

    side = checkout.old_checkout("HEAD~1", repository)

    assert side.python == made.parent / "bin/python"
    assert side.commit == commit[:12]


def test_a_checkout_that_was_changed_is_refused(repository: Path) -> None:
    commit = checkout.resolve("HEAD~1", repository)
    (checkout.worktree(commit, repository) / "file").write_text("edited")

    with pytest.raises(NoBaseline, match=r"not .* as it was committed; remove that folder"):
        checkout.worktree(commit, repository)


def test_a_checkout_that_was_removed_is_made_again(repository: Path) -> None:
    commit = checkout.resolve("HEAD~1", repository)
    folder = checkout.worktree(commit, repository)
    folder.rename(repository / checkout.FOLDER / "elsewhere")

    assert (checkout.worktree(commit, repository) / "file").read_text() == "old"


def test_a_python_that_runs_another_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoBaseline, match="not the code of"):
        replace(NEW, root=tmp_path).check()


# ── Workloads ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("module", PROBES, ids=lambda module: module.__name__)
def test_probes_use_what_is_public_alone(module: object) -> None:
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }

    ours = {name for name in imported if name.split(".")[0] == "penstock"}
    assert ours <= PUBLIC  # an older commit has the same names there, and other modules elsewhere
    assert {name for name in imported if name.startswith("benchmarks")} <= {
        "benchmarks.measuring",
        "benchmarks.paired.figures",
    }


def names(answer: measuring.Answer) -> set[str]:
    return {figure.what for figure in figures.from_answer(answer)}


def test_jobs_of_many_groups_and_lanes_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(names(scheduling.drain("sqlite:///q.db", 20))) == 2


def test_the_cycle_is_read_from_what_the_section_has_written() -> None:
    columns = ["mix", "p50, µs", "CPU, µs"]
    tables = [
        {"columns": ["other"], "rows": [[1]]},
        {"columns": columns, "rows": [["local", 2.0, 1.0], ["keyed", 4.0, 3.0]]},
    ]
    found = scheduling.cycle_figures({"tables": tables, "errors": []})
    assert [(figure.unit, figure.value) for figure in found] == [("µs", 3.0), ("CPU µs", 2.0)]

    with pytest.raises(measuring.ProbeFailed, match="broke"):
        scheduling.cycle_figures({"tables": [], "errors": ["it broke"]})


def test_calls_are_bought_once_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with SimulatedProvider(ProviderRules(latency=0.0)) as provider:
        answer = journal.measure("sqlite:///j.db", provider.url, calls=16)

    assert names(answer) == {"paid calls", "replayed calls"}
    # Of the job before the clock, of those that end, and of those that are stopped: once each.
    assert provider.counts.served == journal.CALLS_EACH + 16 + 16


def test_plans_and_builds_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert names(planning.plan(datasets=5, days=4)) == {"plan of everything"}
    assert len(names(planning.build(slices=2, plans=1))) == 3
