# SPDX-License-Identifier: Apache-2.0
"""Do odd texts and large numbers come back from PostgreSQL as they went in?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from penstock.errors import PenstockError, StoreUnavailable
from penstock.model.job import (
    PAYLOAD_BYTES_MAX,
    AttemptError,
    Edge,
    EdgeKind,
    ErrorCategory,
    JobState,
    LeasedJob,
    NewJob,
)
from penstock.model.lease import (
    ConfiguredCaps,
    EnqueueJobs,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseRequest,
    SetCursor,
    StageManifest,
    Verdict,
)
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.faults.races import register
from tests.running_plan import run_plan

ODD = [
    "back\\slash \\\\ \\n \\u0041 end\\",
    'quotes " \' ` $1 %s {} {"a",null} NULL null',
    'array {"x","y\\"z"} , ; -- /* */',
    "tab\tnewline\ncarriage\rbell\x07delete\x7f",
    "ünïcode ☃ 漢字 \U0001f600 e\u0301 \u202e \ufeff \ufffd",
    " leading and trailing ",
    "",
    "\u0001\u001f",
]
TEXTS = [text for text in ODD if text]
LONG = "ß" * 512
BIG = 2**31 + 7


@pytest.fixture
def store(empty_store: Callable[[], str]) -> Iterator[Store]:
    store = open_postgres(empty_store(), durability="normal")
    yield store
    assert store.check().result() == []
    store.close()


def _take(store: Store, limit: int = 50) -> dict[str, LeasedJob]:
    worker = register(store, "w", ttl=1e6)
    request = LeaseRequest(worker=worker, tasks=("t",), limit=limit, caps=ConfiguredCaps())
    found: dict[str, LeasedJob] = {}
    while jobs := store.lease(request).result().jobs:
        found |= {job.key: job for job in jobs}
    return found


@pytest.mark.parametrize("several", [False, True])
def test_odd_texts_come_back_as_they_went_in(store: Store, several: bool) -> None:
    jobs = [
        NewJob(
            key=f"{number}{text}",
            task="t",
            payload=json.dumps({"p": text, "q": ODD}, ensure_ascii=number % 2 == 0),
            group=f"g{text}",
            partition=f"p{text}",
            limit_keys=(f"l:{text}", f"m:{text}"),
            plan_id=f"plan{text}",
            level=BIG * 4,
            priority=BIG * (-1) ** number,
        )
        for number, text in enumerate([*TEXTS, LONG])
    ]
    if several:
        store.enqueue(jobs).result()
    else:
        for job in jobs:
            store.enqueue([job]).result()
    taken = _take(store)

    assert taken.keys() == {job.key for job in jobs}
    for job in jobs:
        leased = taken[job.key]
        for name in ("payload", "group", "partition", "plan_id", "level", "priority"):
            assert getattr(leased, name) == getattr(job, name), name
        row = store.job(job.key).result()
        assert row is not None
        assert (row.limit_keys, row.payload) == (job.limit_keys, job.payload)
        assert store.holders(100).result()[job.limit_keys[0]] == 1
    result = json.dumps(ODD, ensure_ascii=False)
    ends = [JobEnd(leased, JobState.DONE, 1, BIG**2, result) for leased in taken.values()]
    worker = register(store, "w2")
    assert set(store.ack(worker, ends).result()) == {Verdict.STALE}
    first = store.workers().result()[0].id
    assert store.ack(first, ends).result() == [Verdict.ACCEPTED] * len(jobs)
    for job in jobs:
        row = store.job(job.key).result()
        assert row is not None
        assert (row.result, row.finished_at) == (result, BIG**2)
    assert store.holders(100).result() == {}


def test_odd_texts_in_edges_errors_effects_and_operations(store: Store) -> None:
    parent = [NewJob(key=f"p{text}", task="t", payload="{}", group="g") for text in TEXTS]
    child = [
        NewJob(
            key=f"c{text}",
            task="t",
            payload="{}",
            group="g",
            after=(Edge(f"p{text}", EdgeKind.SUCCESS),),
        )
        for text in TEXTS
    ]
    store.enqueue([*parent, *child]).result()
    taken = _take(store)
    worker = store.workers().result()[0].id
    for number, text in enumerate(TEXTS):
        job = taken[f"p{text}"]
        error = AttemptError(ErrorCategory.OWN, "ValueError", text)
        ref = JobRef(job.id, job.token)
        if number % 2:
            failure = JobFailure(ref, f"p{text}", "t", error, 1, 2, 0.0, True, True)
            assert store.fail_and_retry(worker, [failure]).result() == [Verdict.ACCEPTED]
        else:
            run_plan(store, f"l{text}")
            effects = (
                SetCursor(f"n{text}", text or "x"),
                StageManifest(
                    dataset=f"d{text}",
                    at=BIG - 1,
                    version=f"s{text}",
                    basis=0,
                    document=text,
                    plan_id=f"l{text}",
                    level=BIG,
                    commit=True,
                ),
                EnqueueJobs((NewJob(key=f"e{text}", task="t", payload="{}", group=text or "g"),)),
            )
            end = JobEnd(job, JobState.DONE, 1, 2, "1", None, effects)
            assert store.ack(worker, [end]).result() == [Verdict.ACCEPTED]
            assert store.cursor(f"n{text}").result() == text
            (slice_,) = store.manifests(f"d{text}", 0, BIG, 9).result().rows
            assert (slice_.at, slice_.version, slice_.document) == (BIG - 1, f"s{text}", text)
        row = store.job(f"c{text}").result()
        assert row is not None
        assert row.state is (JobState.SKIPPED if number % 2 else JobState.QUEUED)
    store.set_cap(f"l:{TEXTS[0]}", BIG).result()
    assert store.caps().result() == {f"l:{TEXTS[0]}": BIG}
    assert store.cancel([f"c{text}" for text in TEXTS[::2]]).result() == {
        f"c{text}" for text in TEXTS[::2]
    }


def test_a_payload_and_a_result_of_a_mebibyte(store: Store) -> None:
    payload = json.dumps('é\\"' * ((PAYLOAD_BYTES_MAX - 2) // 6), ensure_ascii=False)
    assert len(payload.encode()) <= PAYLOAD_BYTES_MAX
    store.enqueue(
        [NewJob(key=f"k{n}", task="t", payload=payload, group="g") for n in range(3)]
    ).result()
    taken = _take(store)
    worker = store.workers().result()[0].id
    ends = [JobEnd(job, JobState.DONE, 1, 2, payload) for job in taken.values()]

    assert store.ack(worker, ends).result() == [Verdict.ACCEPTED] * 3
    for number in range(3):
        row = store.job(f"k{number}").result()
        assert row is not None
        assert row.payload == payload
        assert row.result == payload


@pytest.mark.parametrize("text", ["nul \x00", "lone \ud800"])
@pytest.mark.parametrize("field", ["key", "payload", "group", "partition", "plan_id"])
def test_texts_that_no_database_keeps_are_refused_and_stop_nobody(
    store: Store, text: str, field: str
) -> None:
    good = NewJob(key="good", task="t", payload="{}", group="g")

    def put_bad() -> None:
        bad = msgspec.structs.replace(good, **{"key": "bad", field: text})
        store.enqueue([bad]).result()

    with pytest.raises((PenstockError, ValueError)):
        put_bad()
    assert store.enqueue([good]).result().created == {"good"}
    assert store.job("bad").result() is None


def test_an_escaped_nul_in_json_texts_is_only_text(store: Store) -> None:
    """Texts that went through `jsonb` as they are would be refused by the server."""
    nul = json.dumps("a\x00b")
    jobs = [NewJob(key=key, task="t", payload=nul, group="g") for key in ("done", "failed")]
    after = (Edge("failed", EdgeKind.SUCCESS),)
    store.enqueue([*jobs, NewJob(key="c", task="t", payload=nul, group="g", after=after)]).result()
    taken = _take(store)
    worker = store.workers().result()[0].id
    error = AttemptError(ErrorCategory.OWN, "ValueError", "a\x00b")
    ends = [
        JobEnd(taken["done"], JobState.DONE, 1, 2, nul),
        JobEnd(taken["failed"], JobState.ERROR, 1, 2, nul, error),
    ]

    assert store.ack(worker, ends).result() == [Verdict.ACCEPTED] * 2
    for key in ("done", "failed"):
        row = store.job(key).result()
        assert row is not None
        assert (row.payload, row.result) == (nul, nul)
    assert store.retry_failed(None, None).result().failed_total == 1


@pytest.mark.parametrize("text", ["nul \x00", "lone \ud800"])
def test_texts_of_an_effect_that_cannot_be_kept_refuse_its_call_and_stop_nobody(
    store: Store, text: str
) -> None:
    store.enqueue([NewJob(key="k", task="t", payload="{}", group="g")]).result()
    (job,) = _take(store).values()
    worker = store.workers().result()[0].id
    end = JobEnd(job, JobState.DONE, 1, 2, "1")
    with pytest.raises((PenstockError, ValueError)) as refused:
        store.ack(worker, [msgspec.structs.replace(end, effects=(SetCursor("n", text),))]).result()
    assert not isinstance(refused.value, StoreUnavailable)  # which would be tried again and again
    with pytest.raises((PenstockError, ValueError)):
        store.cancel([text]).result()
    assert store.ack(worker, [end]).result() == [Verdict.ACCEPTED]
