# SPDX-License-Identifier: Apache-2.0
"""Do the parts of a run become percents that add up, and sentences that can be acted on?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.job import WorkerId
from penstock.model.run import (
    RUN_BYTES_MAX,
    ActivityTime,
    CauseTime,
    GateSeconds,
    LimitKind,
    ModelFigures,
    RunDocument,
    RunPart,
    read_document,
)
from penstock.observe.explain import (
    RunFacts,
    Unreadable,
    advise,
    cause_name,
    format_unheard,
    mostly_idle,
    run_facts,
    whole_percents,
)

SECOND = 1_000_000


def part(name: str = "w", **said: object) -> RunPart:
    fields: dict[str, object] = {"began_at": 0, "told_at": 10 * SECOND, "over": True, **said}
    document = RunDocument(**fields)  # type: ignore[arg-type]
    return RunPart("run-1", WorkerId(name), document.told_at, document.encoded())


def facts(*parts: RunPart) -> RunFacts:
    found = run_facts(parts)
    assert isinstance(found, RunFacts)
    return found


def cause(
    kind: LimitKind, where: str = "", seconds: float = 10.0, level: float | None = None
) -> CauseTime:
    return CauseTime(kind, where, seconds, level)


CAUSES = st.lists(
    st.builds(
        CauseTime,
        st.sampled_from(LimitKind),
        st.sampled_from(["", "a", "a/m", "async", "host:x"]),
        st.floats(0, 1e6),
        st.none() | st.floats(0, 1e3),
    ),
    max_size=20,
)


@given(st.lists(CAUSES, min_size=1, max_size=4))
def test_percents_of_any_parts_add_up_to_a_hundred_and_can_be_said(
    workers: list[list[CauseTime]],
) -> None:
    found = facts(*(part(f"w{n}", causes=tuple(said)) for n, said in enumerate(workers)))

    percents = [share.percent for share in found.shares]
    assert sum(percents) == (100 if found.shares else 0)
    assert percents == sorted(percents, reverse=True)
    assert all(share.kind is not LimitKind.IDLE for share in found.shares)
    said = advise(found)
    for text in [] if said is None else [said.sentence, said.change]:
        assert "None" not in text
    assert all(cause_name(share, found) for share in found.shares)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_a_percent_is_off_by_less_than_one(parts: list[float]) -> None:
    whole = sum(parts)

    found = whole_percents(parts)

    assert sum(found) == (100 if whole > 0 else 0)
    for value, percent in zip(parts, found, strict=True):
        assert percent == 0 or abs(percent - value / whole * 100) < 1


def test_what_workers_say_is_added_up() -> None:
    model = ModelFigures(
        provider="a", model="m", domains=("chat",), requests=5, refused=1, ceiling=7.0
    )
    one = part(
        "w1",
        causes=(cause(LimitKind.ADAPTIVE_LIMIT, "a/m", 9, 7.0), cause(LimitKind.STORE, "", 1)),
        models=(model,),
        ended=3,
    )
    other = part(
        "w2",
        causes=(cause(LimitKind.ADAPTIVE_LIMIT, "a/m", 5, 7.0), cause(LimitKind.IDLE, "", 5)),
        models=(model,),
        ended=4,
    )

    found = facts(one, other)

    assert (found.workers, found.ended, found.idle_seconds) == (2, 7, 5)
    assert [(s.kind, s.percent) for s in found.shares] == [
        (LimitKind.ADAPTIVE_LIMIT, 93),  # 14 / 15
        (LimitKind.STORE, 7),
    ]
    said = advise(found)
    assert said is not None
    assert said.sentence == (
        "a/m chat sat at its adaptive limit of 14 for 93% of the run; the provider answered 429 at "
        "15 (2 of 10 requests)."
    )


@pytest.mark.parametrize(
    ("tokens", "change"),
    [
        (0, "Make fewer requests, or ask whoever runs a for "),
        (900, "Ask a for "),
    ],
)
@pytest.mark.parametrize("kind", [LimitKind.ADAPTIVE_LIMIT, LimitKind.LEARNED_RATE])
def test_another_model_is_advised_only_where_tokens_are_counted(
    kind: LimitKind, tokens: int, change: str
) -> None:
    model = ModelFigures(provider="a", model="m", requests=5, refused=2, tokens=tokens)

    said = advise(facts(part(causes=(cause(kind, "a/m", 9, 7.0),), models=(model,))))

    assert said is not None
    assert said.change.startswith(change)
    assert ("another model" in said.change) == (tokens > 0)


def test_a_limit_that_was_never_refused_is_said_to_grow() -> None:
    model = ModelFigures(provider="a", model="m", requests=5, limit_reached=40)

    said = advise(
        facts(part(causes=(cause(LimitKind.ADAPTIVE_LIMIT, "a/m", 9, 20.0),), models=(model,)))
    )

    assert said is not None
    assert "was never refused" in said.sentence
    assert "grown to 40" in said.change


@pytest.mark.parametrize(
    ("cpu", "late", "words"),
    [
        (9.0, 0.0, "Add worker processes (--processes 2)"),
        (0.5, 8.0, "Do not block the event loop, which did not respond 80% of the time"),
        (1.0, 0.0, "Raise runtime.async_slots from 4"),
    ],
)
def test_slots_are_not_blamed_on_a_loop_that_can_do_no_more(
    cpu: float, late: float, words: str
) -> None:
    said = advise(
        facts(
            part(
                causes=(cause(LimitKind.SLOTS, "async", 10.0, 4.0),),
                doing=(ActivityTime(LimitKind.OWN_CODE, "", 40.0),),
                slots={"async": 4},
                cpu_seconds=cpu,
                late_seconds=late,
            )
        )
    )

    assert said is not None
    assert words in said.change


def test_a_run_that_is_not_over_says_as_of_when() -> None:
    found = facts(
        part("w1", over=False, told_at=4 * SECOND), part("w2", over=False, told_at=9 * SECOND)
    )

    assert not found.is_over
    assert found.told_at == 4 * SECOND
    assert advise(found) is None


def test_parts_of_another_version_are_passed_over() -> None:
    strange = RunPart("run-1", WorkerId("x"), 0, '{"began_at": "long ago"}')

    assert facts(strange, part()).workers == 1
    assert run_facts([strange]) == Unreadable("run-1", 1)
    assert run_facts([]) is None


def test_a_document_is_bounded_and_keeps_what_limited_the_run() -> None:
    causes = (cause(LimitKind.SLOTS, "async", 10.0),)
    gates = {f"gate {n} {'x' * 200}": GateSeconds(1.0, 2.0) for n in range(50)}
    models = tuple(ModelFigures(provider="p" * 100, model=f"{n}{'m' * 1000}") for n in range(50))
    large = RunDocument(began_at=0, told_at=1, causes=causes, gates=gates, models=models)

    small = read_document(large.encoded())

    assert len(large.encoded()) <= RUN_BYTES_MAX
    assert small is not None
    assert small.causes == causes


def test_who_replaces_a_worker_is_not_one_more() -> None:
    """A limit of 17 and 256 slots, whoever was there before and whoever runs suspects besides."""
    model = ModelFigures(
        provider="a", model="m", requests=100, refused=3, limit=4, limit_max=256, ceiling=6.0
    )
    grown = msgspec.structs.replace(model, limit=17, ceiling=18.0)
    alone = msgspec.structs.replace(model, requests=2, refused=0, limit=1, ceiling=None)
    slots = {"async": 256}
    waits = cause(LimitKind.ADAPTIVE_LIMIT, "a/m", 5.0, 4.0)
    held = cause(LimitKind.ADAPTIVE_LIMIT, "a/m", 15.0, 16.0)
    suspects = cause(LimitKind.SUSPECTS, "", 60.0)

    found = facts(
        part("w1", over=False, place=0, models=(model,), slots=slots, causes=(waits,)),
        part("w2", told_at=90 * SECOND, place=0, models=(grown,), slots=slots, causes=(held,)),
        part("w3", told_at=99 * SECOND, place=0, solo=True, models=(alone,), causes=(suspects,)),
    )

    assert (found.workers, found.at_once, found.slots) == (3, 1, slots)
    (figures,) = found.models
    assert (figures.requests, figures.limit, figures.limit_max) == (202, 17, 256)
    assert [(share.kind, share.percent, share.level) for share in found.shares] == [
        (LimitKind.ADAPTIVE_LIMIT, 100, 13.0)  # (5 × 4 + 15 × 16) / 20
    ]
    said = advise(found)
    assert said is not None
    assert said.sentence.startswith("a/m sat at its adaptive limit of 17 for 100% of the run")
    assert "a higher limit than 18 at once" in said.change


def test_places_of_a_run_are_added_up() -> None:
    model = ModelFigures(provider="a", model="m", limit=4, limit_max=128)

    found = facts(
        part("w1", place=0, models=(model,), slots={"async": 8}),
        part("w2", place=1, models=(model,), slots={"async": 8}),
    )

    assert (found.at_once, found.slots) == (2, {"async": 16})
    assert (found.models[0].limit, found.models[0].limit_max) == (8, 256)


def test_whoever_is_gone_without_a_last_word_is_counted_with_what_is_not_known() -> None:
    killed = part("w1", over=False, within_seconds=4.0)
    renamed = part("w2", over=False, within_seconds=8.0, worker="w9")
    ended = part("w3")

    everyone = run_facts([killed, renamed, ended], alive=())
    one = run_facts([killed, renamed, ended], alive={WorkerId("w9")})

    assert isinstance(everyone, RunFacts)
    assert isinstance(one, RunFacts)
    assert (everyone.is_over, everyone.unheard, everyone.unheard_seconds) == (True, 2, 8.0)
    assert (one.is_over, one.unheard, one.unheard_seconds) == (False, 1, 4.0)
    assert "1 worker ended without a final report" in (format_unheard(one) or "")
    assert "up to the last 4 s of its work" in (format_unheard(one) or "")
    assert format_unheard(facts(ended)) is None


def test_the_time_between_ticks_is_no_limit() -> None:
    busy = (cause(LimitKind.OWN_CODE, "", 3.0), cause(LimitKind.STORE, "", 1.0))
    found = facts(part(causes=(*busy, cause(LimitKind.IDLE, "", 96.0)), ended=1))

    said = advise(found)

    assert mostly_idle(found)
    assert said is not None
    assert "ran for 3% of the run" in said.sentence
    assert not mostly_idle(facts(part(causes=busy)))


@pytest.mark.parametrize(("seconds", "said"), [(25.0, "2.5 ran"), (1_400.0, "140 ran")])
def test_how_many_ran_is_told_in_plain_digits(seconds: float, said: str) -> None:
    doing = (ActivityTime(LimitKind.OWN_CODE, "", seconds),)
    found = advise(facts(part(causes=(cause(LimitKind.DEPENDENCIES),), doing=doing)))
    assert found is not None
    assert said in found.sentence
