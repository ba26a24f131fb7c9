# SPDX-License-Identifier: Apache-2.0
"""Every instant of a worker is charged to exactly one cause, and to the right one."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.events.kinds import Correlation
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import (
    RequestAdmissionItem,
    RequestGroupSpec,
    RequestOutcome,
    RequestReleaseOutcome,
)
from penstock.model.run import CAUSES_SHOWN, LimitKind
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from penstock.worker.bottleneck import CAUSES_MAX, HELD_MAX, OTHER, Bottleneck, Cause

MODELS = [ProviderModelKey("a", "m"), ProviderModelKey("a", "n"), ProviderModelKey("b", "m")]
GROUP = RequestGroupSpec("chat")
ENDED = RequestReleaseOutcome(RequestOutcome.SUCCESS)


class Time:
    """A clock that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def item(job: int, model: ProviderModelKey = MODELS[0]) -> RequestAdmissionItem:
    resource = RequestResourceKey(*model, "chat")
    return RequestAdmissionItem(
        resource, GROUP, None, None, Correlation("r", "t", job_id=job, execution=1)
    )


def lease(item: RequestAdmissionItem) -> RequestAdmissionLease:
    return RequestAdmissionLease(1, item, 0.0, 1, 1, "g")


def charged(bottleneck: Bottleneck) -> dict[tuple[str, str], float]:
    return {(cause.kind.value, cause.where): cause.seconds for cause in bottleneck.causes()}


def done(bottleneck: Bottleneck) -> dict[tuple[str, str], float]:
    return {(one.kind.value, one.where): one.seconds for one in bottleneck.doing()}


def test_time_goes_to_what_stood_until_it_changed() -> None:
    time = Time()
    bottleneck = Bottleneck(time)

    time.now += 1
    bottleneck.turned(4, Cause(LimitKind.SLOTS, "async", 4), ())
    time.now += 10
    bottleneck.turned(0, Cause(LimitKind.IDLE), ())
    time.now += 5

    assert charged(bottleneck) == {("store", ""): 1, ("slots", "async"): 10, ("idle", ""): 5}
    assert bottleneck.seconds == 16
    assert bottleneck.causes()[0].level == 4


def test_those_that_run_have_equal_parts_of_the_time() -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.turned(4, Cause(None), ())
    for job in range(4):
        bottleneck.began((job, 1))
    bottleneck.held_back(MODELS[0], LimitKind.TPM, 600.0)
    bottleneck.queued(item(0))
    bottleneck.granted(lease(item(1)))
    bottleneck.granted(lease(item(2, MODELS[2])))

    time.now += 8  # one each in: a permit, a reply of a, a reply of b, its own code

    assert charged(bottleneck) == {
        ("tpm", "a/m"): 2,
        ("latency", "a/m"): 2,
        ("latency", "b/m"): 2,
        ("own_code", ""): 2,
    }
    assert done(bottleneck) == {
        ("tpm", "a/m"): 8,
        ("latency", "a/m"): 8,
        ("latency", "b/m"): 8,
        ("own_code", ""): 8,
    }


@pytest.mark.parametrize(("waiting", "kind"), [(2, "slots"), (3, "cooldown")])
def test_slots_count_unless_most_of_their_holders_wait_for_permits(waiting: int, kind: str) -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.turned(4, Cause(LimitKind.SLOTS, "async", 4, by_holders=True), ())
    bottleneck.held_back(MODELS[0], LimitKind.COOLDOWN, None)
    for job in range(waiting):
        bottleneck.began((job, 1))
        bottleneck.queued(item(job))

    time.now += 6

    assert charged(bottleneck) == {(kind, "a/m" if kind == "cooldown" else "async"): 6}


@pytest.mark.parametrize(("flying", "kind"), [(3, "adaptive_limit"), (1, "slots")])
def test_slots_do_not_count_if_their_holders_fill_the_limit_of_a_model(
    flying: int, kind: str
) -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.turned(4, Cause(LimitKind.SLOTS, "async", 4, by_holders=True), ())
    bottleneck.held_back(MODELS[0], LimitKind.ADAPTIVE_LIMIT, 3.0)
    for job in range(4):
        bottleneck.began((job, 1))
    bottleneck.queued(item(0))  # more slots would only let more of them wait
    for job in range(1, 4):
        bottleneck.granted(lease(item(job, MODELS[0] if job <= flying else MODELS[2])))

    time.now += 6

    assert charged(bottleneck) == {(kind, "a/m" if kind == "adaptive_limit" else "async"): 6}


def test_a_reason_to_wait_that_changes_splits_the_time() -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.turned(1, Cause(None), ())
    bottleneck.began((1, 1))
    bottleneck.held_back(MODELS[0], LimitKind.ADAPTIVE_LIMIT, 8.0)
    bottleneck.queued(item(1))

    time.now += 3
    bottleneck.held_back(MODELS[0], LimitKind.COOLDOWN, None)
    time.now += 4

    assert charged(bottleneck) == {("adaptive_limit", "a/m"): 3, ("cooldown", "a/m"): 4}


def test_a_provider_that_is_closed_speaks_for_its_models() -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.turned(1, Cause(None), ())
    bottleneck.began((1, 1))
    bottleneck.held_back(MODELS[0], LimitKind.ADAPTIVE_LIMIT, 8.0)
    bottleneck.queued(item(1))

    time.now += 3
    bottleneck.held_back(ProviderModelKey("a", "*"), LimitKind.RPM, 60.0)
    time.now += 4
    bottleneck.held_back(MODELS[0], LimitKind.ADAPTIVE_LIMIT, 8.0)
    time.now += 5

    assert charged(bottleneck) == {("adaptive_limit", "a/m"): 8, ("rpm", "a"): 4}


def test_a_gate_has_the_reason_of_its_provider() -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.held_back(MODELS[1], LimitKind.MAX_PARALLEL, 3.0)
    bottleneck.turned(3, Cause(LimitKind.ADAPTIVE_LIMIT, gate=ProviderModelKey("a", "*")), ())

    time.now += 2
    bottleneck.turned(3, Cause(LimitKind.ADAPTIVE_LIMIT, gate=ProviderModelKey("c", "x")), ())
    time.now += 1

    assert charged(bottleneck) == {("max_parallel", "a/n"): 2, ("adaptive_limit", "c/x"): 1}


def test_an_attempt_that_has_ended_does_nothing_more() -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    bottleneck.turned(2, Cause(None), ())
    bottleneck.began((1, 1))
    bottleneck.granted(lease(item(1)))
    time.now += 2  # half of it is the other's own code

    bottleneck.left((1, 1))
    bottleneck.left((1, 1))
    bottleneck.granted(lease(item(1)))  # a detached body goes on
    bottleneck.turned(1, Cause(None), ())
    time.now += 3

    assert charged(bottleneck) == {("latency", "a/m"): 1, ("own_code", ""): 4}


def test_more_causes_than_are_kept_are_told_as_others_and_none_is_lost() -> None:
    time = Time()
    bottleneck = Bottleneck(time)
    time.now += 1
    for n in range(CAUSES_MAX + 50):
        bottleneck.turned(0, Cause(LimitKind.KEYED_LIMIT, f"host:{n}"), ())
        time.now += 1

    causes = bottleneck.causes()

    assert len(causes) <= CAUSES_SHOWN + 2
    assert sum(cause.seconds for cause in causes) == pytest.approx(bottleneck.seconds)
    assert any(cause.where == OTHER for cause in causes)


# ── Beside a model that looks at everything at every instant ──────────────────────────────────


JOBS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("began"), JOBS),
        st.tuples(st.just("left"), JOBS),
        st.tuples(st.just("waits"), JOBS, st.integers(0, 2)),
        st.tuples(st.just("waits_no_more"), JOBS),
        st.tuples(st.just("sent"), JOBS, st.integers(0, 2)),
        st.tuples(st.just("replied"), JOBS),
        st.tuples(st.just("kept"), st.integers(0, 2), st.sampled_from(["tpm", "cooldown"])),
        st.tuples(st.just("stands"), st.integers(0, 4), st.sampled_from(["run", "slots", "idle"])),
        st.tuples(st.just("pass"), st.integers(1, 5)),
    ),
    max_size=60,
)


class Slow:
    """The same rules, asked anew for every instant."""

    def __init__(self) -> None:
        self.jobs: dict[int, dict[str, list[int]]] = {}
        self.kept: dict[int, str] = {}
        self.stand, self.running = "store", 0
        self.charged: dict[tuple[str, str], float] = defaultdict(float)

    def doing(self) -> list[tuple[str, int]]:
        found = []
        for job in self.jobs.values():
            if job["waits"]:
                found.append(("waits", job["last_wait"][-1]))
            elif job["flies"]:
                found.append(("flies", job["last_flight"][-1]))
        return found

    def passed(self, seconds: int) -> None:
        doing = self.doing()
        running = max(self.running, len(doing))
        waits = [model for what, model in doing if what == "waits"]
        if self.stand == "run":
            self.share(doing, running, seconds)
        elif self.stand == "slots" and waits and 2 * self.pressed(doing) > running:
            self.share([("waits", model) for model in waits], len(waits), seconds)
        else:
            self.charged[self.stand, ""] += seconds

    def pressed(self, doing: list[tuple[str, int]]) -> int:
        waited_for = {model for what, model in doing if what == "waits"}
        return sum(model in waited_for for _, model in doing)

    def share(self, doing: list[tuple[str, int]], running: int, seconds: float) -> None:
        part = seconds / max(running, 1)
        for what, model in doing:
            name = "/".join(MODELS[model])
            kind = "latency" if what == "flies" else self.kept.get(model)
            if kind is None:
                others = [n for n in self.kept if MODELS[n].provider == MODELS[model].provider]
                name = "/".join(MODELS[others[-1]]) if others else name
                kind = self.kept[others[-1]] if others else "adaptive_limit"
            self.charged[kind, name] += part
        self.charged["own_code", ""] += seconds - part * len(doing)


@given(STEPS)
def test_the_integrals_are_those_of_a_model_that_looks_at_every_instant(
    steps: list[tuple[object, ...]],
) -> None:
    time = Time()
    bottleneck, slow = Bottleneck(time), Slow()
    for name, *rest in steps:
        match name, *rest:
            case "pass", int(seconds):
                slow.passed(seconds)
                time.now += seconds
            case "stands", int(running), str(how):
                slow.running, slow.stand = running, how
                kind = {"run": None, "slots": LimitKind.SLOTS, "idle": LimitKind.IDLE}[how]
                bottleneck.turned(running, Cause(kind, by_holders=how == "slots"), ())
            case "kept", int(model), str(kind_name):
                slow.kept.pop(model, None)
                slow.kept[model] = kind_name
                bottleneck.held_back(MODELS[model], LimitKind(kind_name), None)
            case "began", int(number):
                if number not in slow.jobs:
                    slow.jobs[number] = {
                        n: [] for n in ("waits", "flies", "last_wait", "last_flight")
                    }
                    bottleneck.began((number, 1))
            case "left", int(number):
                slow.jobs.pop(number, None)
                bottleneck.left((number, 1))
            case ("waits" | "sent") as what, int(number), int(model):
                if number in slow.jobs:
                    job = slow.jobs[number]
                    job["waits" if what == "waits" else "flies"].append(model)
                    job["last_wait" if what == "waits" else "last_flight"].append(model)
                asked = item(number, MODELS[model])
                if what == "waits":
                    bottleneck.queued(asked)
                else:
                    bottleneck.granted(lease(asked))
            case ("waits_no_more" | "replied") as what, int(number):
                key = "waits" if what == "waits_no_more" else "flies"
                if slow.jobs.get(number, {}).get(key):
                    slow.jobs[number][key].pop()
                if what == "waits_no_more":
                    bottleneck.dequeued(item(number))
                else:
                    bottleneck.released(lease(item(number)), ENDED, time.now)

    wanted = {key: seconds for key, seconds in slow.charged.items() if seconds > 1e-9}
    assert charged(bottleneck) == pytest.approx(wanted)
    assert sum(charged(bottleneck).values()) == pytest.approx(bottleneck.seconds)


def test_the_use_of_resources_is_right_however_many_requests_ask_for_the_same() -> None:
    time = Time()
    bottleneck = Bottleneck(time)

    for n in range(HELD_MAX + 100):
        request = SchedulerResourceRequest({"async": 1 + n % 2})
        task = SchedulableTask(n, None, TaskGroupSpec("g"), request)
        bottleneck.came_back(TaskAdmissionLease(n, task, time.now - 2.0, "1"))

    assert bottleneck.used(()) == {"submission": 2.0 * 1_124, "async": 3.0 * 1_124}
