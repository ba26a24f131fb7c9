# SPDX-License-Identifier: Apache-2.0
"""F57: what is no JSON reaches no row, names its place, and is the same on every store."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Context, Penstock
from penstock.errors import PayloadError, StrictJsonError
from penstock.model.job import ERROR_BYTES_MAX, JobState
from penstock.stores.protocol import Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing import ManualClock

MIB = 1024 * 1024


def circle() -> list[Any]:
    inner: list[Any] = [1]
    inner.append({"again": inner})
    return inner


def endless() -> list[Any]:
    """A value of 60 small lists that would be 2^60 characters long."""
    value: list[Any] = [0]
    for _ in range(60):
        value = [value, value]
    return value


@dataclass
class Holder:
    inner: object


#: what it is, a value, its path, what is said
BAD: list[tuple[str, Callable[[], Any], str, str]] = [
    ("unserialisable", lambda: {"a": [0, object()]}, "$.a[1]", "a value of type object"),
    ("behind a good one", lambda: [Holder(1), {"b": 1j}], "$[1].b", "a value of type complex"),
    ("NaN", lambda: {"a": {"b": math.nan}}, "$.a.b", "NaN is not JSON; null (None) is"),
    ("infinity", lambda: [1, [-math.inf]], "$[1][0]", "-Infinity is not JSON"),
    ("NaN in a dataclass", lambda: {"a": Holder(math.nan)}, "$.a.inner", "NaN is not JSON"),
    ("large", lambda: "x" * MIB, "$", "1,048,578 bytes; at most 1,048,576"),
    ("endless", endless, "$", "more than 1,048,576"),
    ("circle", circle, "$[1].again", "holds $ again: a circle"),
    ("deep circle", lambda: {"a": circle()}, "$.a[1].again", "holds $.a again: a circle"),
    ("lone surrogate", lambda: {"a": "x\ud800"}, "$.a", "a lone surrogate"),
    ("lone surrogate in a key", lambda: {"a": {"\udfff": 1}}, "$.a", "a lone surrogate"),
    ("NUL", lambda: ["a\x00b"], "$[0]", "a NUL character"),
    ("NUL in a key", lambda: {"a": {"\x00": 1}}, "$.a", "a NUL character"),
    ("integer", lambda: {"n": 2**63}, "$.n", "an integer outside 64 bits"),
    ("small integer", lambda: {"n": -(2**63) - 1}, "$.n", "an integer outside 64 bits"),
    ("huge integer", lambda: [10**5000], "$[0]", "an integer outside 64 bits"),
    ("bytes", lambda: {"a": [b"x"]}, "$.a[0]", "a value of type bytes"),
    ("bytes in a dataclass", lambda: Holder([b"x"]), "$.inner[0]", "a value of type bytes"),
    ("key that is no text", lambda: {"a": {1: 2}}, "$.a", "a key of type int"),
    ("strange key", lambda: {"a b": {"c.d": math.nan}}, '$["a b"]["c.d"]', "NaN is not JSON"),
    ("long key", lambda: {"k" * MIB: math.nan}, '$["' + "k" * 40, "NaN is not JSON"),
]
named = pytest.mark.parametrize(
    ("value", "path", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)


def memory() -> InProcessStore:
    return InProcessStore(ManualClock())


@contextmanager
def both_stores() -> Iterator[dict[str, Store]]:
    with TemporaryDirectory() as folder:
        sqlite = SqliteStore.open(Path(folder) / "s.db", durability="normal")
        try:
            yield {"memory": memory(), "sqlite": sqlite}
        finally:
            sqlite.close()


@contextmanager
def app_on(store: Store) -> Iterator[Penstock]:
    app = Penstock("inputs")

    @app.task()
    async def keep(ctx: Context, value: Any) -> None: ...

    app.use_store(store)
    yield app


def said_of(call: Callable[[], object]) -> str:
    with pytest.raises(PayloadError) as caught:
        call()
    return str(caught.value)


@named
def test_f57_a_bad_payload_is_refused_with_its_path_and_no_row_changes(
    value: Callable[[], Any], path: str, said: str
) -> None:
    refusals: set[str] = set()
    with both_stores() as stores:
        for store in stores.values():
            refusals |= _refusals(store, value)

    (refusal,) = refusals  # the same words everywhere
    assert said[-13:] in refusal  # the numbers in it are those of the whole payload
    assert _path_in(refusal).startswith("$.value" + path[1:] if said[-5:] != "8,576" else "$")
    assert len(refusal) < 500


def _refusals(store: Store, value: Callable[[], Any]) -> set[str]:
    """What is said of the value alone and behind good ones; nothing may have changed."""
    before = store.stats().result()
    with app_on(store) as app:
        keep = app.tasks["keep"]
        alone = said_of(lambda: app.enqueue(keep.job(value=value()), key="k"))
        many = [1, 2, value()]
        third = said_of(lambda: app.enqueue_many(keep.job(value=v) for v in many))
    assert store.stats().result() == before
    assert store.job("k").result() is None
    return {alone, third}


def _path_in(refusal: str) -> str:
    """Put the argument and the place inside it together again."""
    found = re.match(r"Task 'keep'(?:, argument '([^']+)'(?: \(at '(.+)'\))?)?: ", refusal)
    assert found is not None, refusal
    argument, inner = found[1] or "", found[2] or ""
    return f"$.{argument}{'' if not inner or inner.startswith('[') else '.'}{inner}"


@named
def test_f57_a_bad_document_is_refused_with_its_exact_path(
    value: Callable[[], Any], path: str, said: str
) -> None:
    from penstock.model import strict_json

    with pytest.raises(StrictJsonError) as caught:
        strict_json.dumps(value(), limit_bytes=MIB)

    assert type(caught.value) in (StrictJsonError, strict_json.TooLarge)
    assert caught.value.path.startswith(path) if "kkk" in path else caught.value.path == path
    assert said in caught.value.problem


def run_returning(values: list[Any], store: Store) -> dict[str, tuple[Any, ...]]:
    """Run one job for each value, whose task returns it; what the store knows afterwards."""
    app = Penstock("inputs")

    @app.task(max_attempts=1)
    async def give(ctx: Context, n: int) -> Any:
        return values[n]

    app.use_store(store)
    app.enqueue_many(give.job(n=n).with_options(key=str(n)) for n in range(len(values)))
    app.run(drain=True)
    found: dict[str, tuple[Any, ...]] = {}
    for n in range(len(values)):
        job = store.job(str(n)).result()
        assert job is not None
        found[str(n)] = (job.state, job.result, job.last_error, job.attempts)
    assert store.check().result() == []
    return found


class SystemMemory(InProcessStore):
    """The memory store in real time, for a run beside a real one."""

    def __init__(self) -> None:
        from penstock.clock import SystemClock

        super().__init__(SystemClock())


def test_f57_a_bad_result_ends_its_job_with_the_path_and_the_same_on_both_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = [row[1]() for row in BAD]
    with both_stores() as stores:
        in_sqlite = run_returning(values, stores["sqlite"])
    in_memory = run_returning(values, SystemMemory())

    assert in_memory == in_sqlite
    for n, (_, _, path, said) in enumerate(BAD):
        state, result, error, attempts = in_sqlite[str(n)]
        assert (state, result, attempts) == (JobState.ERROR, None, 0)
        assert error.kind == "result"
        is_large = "1,048,576" in said
        begin = "result is too large: " if is_large else f"result is not JSON: {path}"
        assert error.message.startswith(begin)
        assert said in error.message
        assert len(error.message.encode()) <= ERROR_BYTES_MAX


_any_text = st.text(max_size=8) | st.sampled_from(["\ud800", "a\x00", "é", "\u2028", "😀"])
_any_scalar = (
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | _any_text
    | st.binary(max_size=3)
    | st.just(object)
)
any_value = st.recursive(
    _any_scalar,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(_any_text | st.integers(), inner, max_size=3)
        | st.builds(Holder, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(any_value, max_size=12))
def test_f57_memory_and_sqlite_accept_refuse_and_keep_the_same_payloads(values: list[Any]) -> None:
    told: dict[str, list[object]] = {}
    with both_stores() as stores:
        for name, store in stores.items():
            with app_on(store) as app:
                told[name] = [_accepted(app, store, n, value) for n, value in enumerate(values)]
                counted = sum(store.stats().result().states.values())
                assert counted == sum(not isinstance(x, PayloadError) for x in told[name])
                assert store.check().result() == []

    for left, right in zip(told["memory"], told["sqlite"], strict=True):
        assert repr(left) == repr(right)


def _accepted(app: Penstock, store: Store, n: int, value: Any) -> object:
    try:
        request = app.tasks["keep"].job(value=value)
    except PayloadError as refusal:
        return refusal
    app.enqueue(request, key=str(n))
    job = store.job(str(n)).result()
    assert job is not None
    args, _ = app.tasks["keep"].codec.call_arguments(job.payload)
    return job.payload, args


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(any_value, min_size=1, max_size=20))
def test_f57_memory_and_sqlite_keep_the_same_results(values: list[Any]) -> None:
    with both_stores() as stores:
        in_sqlite = run_returning(values, stores["sqlite"])
    in_memory = run_returning(values, SystemMemory())

    assert in_memory == in_sqlite


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": [1, NaN]}', "$.a[1]"),
        ('{"a": {"b": -Infinity}}', "$.a.b"),
        ('{"a": [1e999]}', "$.a[0]"),
        ('{"a": [{"x": 1, "x": 2}]}', "$.a[0]"),
        ('{"a": "\\ud800"}', "$.a"),
        ('{"a": ["\\u0000"]}', "$.a[0]"),
        ('{"a": 9223372036854775808}', "$.a"),
    ],
)
def test_f57_text_from_outside_is_refused_with_the_path_as_well(text: str, path: str) -> None:
    from penstock.model import strict_json

    with pytest.raises(StrictJsonError) as caught:
        strict_json.loads(text)

    assert caught.value.path == path


def test_f57_a_fan_out_with_a_bad_payload_fails_its_parent_and_adds_no_job() -> None:
    app = Penstock("inputs")

    @app.task(max_attempts=1)
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.job(value=1), key="good")
        await asyncio.sleep(0)
        ctx.enqueue(child.job(value=[math.nan]), key="bad")

    @app.task()
    async def child(ctx: Context, value: Any) -> None: ...

    store = SystemMemory()
    app.use_store(store)
    app.enqueue(parent.job(), key="parent")
    app.run(drain=True)

    job = store.job("parent").result()
    assert job is not None
    assert job.state is JobState.ERROR
    assert job.last_error is not None
    assert "argument 'value[0]': NaN is not JSON" in job.last_error.message
    assert sum(store.stats().result().states.values()) == 1
