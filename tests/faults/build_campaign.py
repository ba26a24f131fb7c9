# SPDX-License-Identifier: Apache-2.0
"""Kill builds again and again, say the same command again, and ask what readers saw meanwhile.

Every cycle builds everything anew: the version of all datasets has changed. While a build runs and
after it was killed, a reader looks: it must see each level (eager: each job) old or new. The same
command must end well, must not build what has a manifest already, and must leave nothing behind.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.faults import build_oracle
from tests.faults.build_project import LONG_TTL_SECONDS, BuildProject

#: Points of a worker, and the last of their hits at which it may die. The first of them plans.
WORKER_POINTS = {
    "lock.in_tx": 1,
    "enqueue.begin": 1,
    "enqueue.in_tx": 1,
    "enqueue.committed": 1,
    "plan.in_tx": 1,
    "lease.in_tx": 3,
    "lease.committed": 3,
    "exec.before": 12,
    "dataset.part_written": 12,
    "dataset.part_synced": 12,
    "dataset.renamed": 12,
    "dataset.dir_synced": 8,
    "ack.in_tx": 10,
    "ack.committed": 10,
    "dataset.staged": 10,
    "dataset.level_committed": 3,
}
SUPERVISOR_POINTS = {"lock.in_tx": 3, "plan.in_tx": 1}  # a beat of the locks, the end of the plan
ONLY_BY_LEVEL = "dataset.level_committed"
LOOK_SECONDS = 0.02
HELD = ("east@2024-01-02", "pair@2024-01-02")
HELD_LOOKS = 5
TARGET = "week"


@dataclass(frozen=True, slots=True)
class Death:
    """Who dies where."""

    role: str  # whose point it is
    point: str
    at: int
    whole: bool  # with all processes of the run

    def __str__(self) -> str:
        return f"{'whole run' if self.whole else self.role} at {self.point}"


def every_death(chance: random.Random) -> Iterator[tuple[bool, Death]]:
    """Each point in each mode, of the worker and of the whole run; at any of its hits."""
    for eager, whole, (point, most) in product((False, True), (False, True), WORKER_POINTS.items()):
        if not eager or point != ONLY_BY_LEVEL:
            yield eager, Death("worker", point, chance.randint(1, most), whole=whole)
    for eager, (point, most) in product((False, True), SUPERVISOR_POINTS.items()):
        yield eager, Death("supervisor", point, chance.randint(1, most), whole=False)


def any_death(chance: random.Random, *, eager: bool) -> Death:
    """Any one."""
    if chance.random() < 0.12:
        point = chance.choice(sorted(SUPERVISOR_POINTS))
        at = chance.randint(1, SUPERVISOR_POINTS[point])
        return Death("supervisor", point, at, whole=False)
    point = chance.choice([one for one in WORKER_POINTS if not eager or one != ONLY_BY_LEVEL])
    at = chance.randint(1, WORKER_POINTS[point])
    return Death("worker", point, at, whole=chance.random() < 0.5)


@dataclass
class BuildCampaign:
    """Owns the project and what was seen of it."""

    folder: Path
    seed: int
    url: str | None = None
    kills: dict[str, int] = field(default_factory=dict)
    missed: int = 0  # points that a build did not come to
    looks: int = 0
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.project = BuildProject(self.folder, self.url, ttl_seconds=LONG_TTL_SECONDS)
        self.version = 0
        self._settled: dict[str, int] = {}  # slice → bodies that had begun when it had a manifest

    def cycle(self, *planned: Death, eager: bool | None = None) -> None:
        """Build everything anew; die, as planned or by chance; say the command until it is done."""
        self.version += 1
        self.project.say("version", str(self.version))
        self._settled = {}
        eager = self.random.random() < 0.5 if eager is None else eager
        chosen = planned or self._chosen(eager=eager)
        before = build_oracle.files(self.project.root)
        for death in chosen:
            self._die(death, eager=eager)
        story = f"cycle {self.version}, {'eager' if eager else 'by level'}, {chosen}"
        code, errors = self._watch(eager=eager)
        if code:
            self.broken.append(f"{story}: the same command ended with {code}: {errors[-800:]}")
        self.broken += [f"{story}: {said}" for said in self._after(before)]

    def _chosen(self, *, eager: bool) -> tuple[Death, ...]:
        """One death or two."""
        count = 1 if self.random.random() < 0.7 else 2
        return tuple(any_death(self.random, eager=eager) for _ in range(count))

    def _die(self, death: Death, *, eager: bool) -> None:
        mark = self.folder / f"once-{self.version}-{self.looks}"
        mark.touch()
        rule = {"at": death.at, "once": str(mark), "whole": death.whole}
        points: dict[str, object] = {death.role: {death.point: rule}}
        code, errors = self._watch(points, eager=eager)
        if "Traceback" in errors:
            self.broken.append(f"{death}: a traceback: {errors[-1500:]}")
        if mark.exists():
            mark.unlink()
            self.missed += 1
            return
        self.kills[str(death)] = self.kills.get(str(death), 0) + 1
        if death.whole or death.role == "supervisor":
            if code != -9:
                self.broken.append(f"{death}: the run was killed and ended with {code}")
        elif code == 1 and "same command" not in errors:
            self.broken.append(f"{death}: exit 1 without a word what to do: {errors[-500:]}")
        elif code not in (0, 1):
            self.broken.append(f"{death}: exit {code}: {errors[-500:]}")

    def _watch(
        self, failpoints: dict[str, object] | None = None, *, eager: bool
    ) -> tuple[int, str]:
        """Build, read again and again until that has ended, and once more.

        One body stands still for some looks, so that the rest of its level is there without it.
        """
        held = self.random.choice(HELD)
        self.project.say("hold", held)
        before = self.project.bodies().count((held, str(self.version)))
        looks_left = HELD_LOOKS
        process = self.project.start(*_arguments(eager), failpoints=failpoints)
        while process.poll() is None:
            self._look(eager=eager)
            time.sleep(LOOK_SECONDS)
            if self.project.bodies().count((held, str(self.version))) > before:
                looks_left -= 1
            if not looks_left:
                self.project.say("hold", "")
        self._look(eager=eager)
        ended = self.project.ended(process)
        return ended.code, ended.errors

    def _look(self, *, eager: bool) -> None:
        self.looks += 1
        rows = build_oracle.manifests(self.project.url)
        begun = len(self.project.bodies())
        for row in rows:
            if row.version == str(self.version):
                self._settled.setdefault(row.slice, begun)
        seen = build_oracle.visible(rows)
        self.broken += build_oracle.wrong(seen, self.project.root, eager=eager)

    def _after(self, before: set[str]) -> list[str]:
        """What does not hold at the end of a cycle."""
        version = str(self.version)
        found = self.project.unsound()
        rows = build_oracle.manifests(self.project.url)
        seen = build_oracle.visible(rows)
        stale = [name for name in build_oracle.SLICES if name not in seen]
        stale += [name for name, row in seen.items() if row.version != version]
        found += [f"{name} was not built" for name in stale]
        found += [f"a manifest stays staged: {row}" for row in rows if row.seq is None]
        bodies = self.project.bodies()
        for name, begun in self._settled.items():
            if (name, version) in bodies[begun:]:
                found.append(f"{name} was built again after its manifest was there")
        named = {row.path for row in seen.values()}
        left = build_oracle.files(self.project.root) - named - before
        return found + [f"a file that no manifest names: {path}" for path in sorted(left)]

    def finish(self) -> list[str]:
        """What did not hold."""
        self.project.close()
        return self.broken


def _arguments(eager: bool) -> tuple[str, ...]:
    return (TARGET, "--eager") if eager else (TARGET,)
