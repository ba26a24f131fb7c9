# SPDX-License-Identifier: Apache-2.0
"""Does what a function returned come back from its file?"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pandas
import polars
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.ids import SeededIds
from penstock.model.dataset import SliceOutput, utc_micros
from penstock.outputs.paths import SliceNames
from penstock.outputs.read import Slices, SlicesData
from penstock.outputs.root import OutputRoot, open_root
from penstock.outputs.write import encode_slices, write_slices

AT = datetime(2024, 1, 5, 21, tzinfo=UTC)
NEXT = AT + timedelta(days=1)
PRICES = SliceNames(dataset="prices", tz="America/New_York", daily=True)
ZONE = ZoneInfo("America/New_York")


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    return open_root(tmp_path / "datasets", SeededIds(1))


def write(root: OutputRoot, value: object, at: datetime = AT, attempt: str = "1:1") -> SliceOutput:
    (output,) = write_slices(
        root, PRICES, encode_slices(value, [utc_micros(at)], PRICES, batch=False), attempt
    )
    return output


def slices(root: OutputRoot, *outputs: SliceOutput, **more: Any) -> Slices:
    return Slices(
        SlicesData(named=PRICES, root_path=root.path, root_id=root.id, outputs=outputs, **more)
    )


def refusal(value: object) -> str:
    with pytest.raises(UsageError) as caught:
        list(encode_slices(value, [utc_micros(AT)], PRICES, batch=False))
    return str(caught.value)


def test_rows_come_back_with_columns_in_order_of_first_appearance(root: OutputRoot) -> None:
    output = write(root, [{"b": 1, "a": "x"}, {"c": None, "b": 2}])

    found = slices(root, output)

    assert found.table().column_names == ["b", "a", "c"]
    assert found.rows() == [{"b": 1, "a": "x", "c": None}, {"b": 2, "a": None, "c": None}]
    assert (output.kind, output.rows) == ("parquet", 2)
    assert output.path.startswith("prices/2024-01-05T210000Z/part-")
    assert output.bytes == (Path(root.path) / output.path).stat().st_size


VALUES: tuple[object, ...] = (
    True,
    -(2**63),
    1.5,
    "ünï",
    b"\0\xff",
    datetime(2024, 11, 3, 1, 30, tzinfo=ZONE, fold=1),
    datetime(2024, 1, 1, 1),
    date(2024, 1, 5),
    time(23, 59, 59, 999999),
    timedelta(days=-3, microseconds=1),
    Decimal("123456789012345678901234567890.12"),
    [1, None, 2],
    [],
    {"a": {"b": [1.5]}},
    [{"a": 1}, {"a": None}],
)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_of_every_allowed_type_come_back(root: OutputRoot, value: object) -> None:
    output = write(root, [{"v": value}, {"v": None}])

    assert slices(root, output).rows() == [{"v": value}, {"v": None}]


def test_times_of_several_zones_are_kept_as_moments(root: OutputRoot) -> None:
    there = [AT, AT.astimezone(ZONE), AT.astimezone(timezone(timedelta(hours=5, minutes=30)))]

    output = write(root, [{"v": moment} for moment in there])

    assert [row["v"] for row in slices(root, output).rows()] == there


REFUSED: Mapping[str, tuple[object, str]] = {
    "nothing": (None, "prices@2024-01-05 returned nothing"),
    "a number": (3, "a value of type int"),
    "text": ("rows", "a value of type str"),
    "a generator": (iter([{"a": 1}]), "list_iterator"),
    "one row": ({"a": 1}, "a value of type dict"),
    "a view with gaps": (memoryview(b"abcdef")[::2], "a view of memory that is not in one piece"),
    "a lazy frame": (polars.DataFrame({"a": [1]}).lazy(), "LazyFrame"),
    "rows that are lists": ([[1]], "row 0 is not a dict but of type list"),
    "a name that is no text": ([{"a": 1}, {1: 1}], "row 1 has a column name"),
    "a name that is no Unicode": ([{"\ud800": 1}], "a column name that is not Unicode text"),
    "an inner name that is no Unicode": ([{"a": {"\ud800": 1}}], "key that is not Unicode text"),
    "rows without columns": ([{}, {}], "no columns"),
    "text and numbers": ([{"a": "x"}, {"a": 1}], "column 'a' has values of several types, int and"),
    "text and bytes": ([{"a": "x"}, {"a": b"x"}], "column 'a' has values of several types, bytes"),
    "truth and numbers": ([{"a": True}, {"a": 1}], "several types, bool and int"),
    "dates and times": ([{"a": date(2024, 1, 1)}, {"a": AT}], "several types, date and datetime"),
    "zone or none": ([{"a": AT}, {"a": datetime(2024, 1, 1)}], "with and without a zone"),
    "time of day with zone": ([{"a": time(1, tzinfo=UTC)}], "time of day with a zone"),
    "a set": ([{"a": {1}}], "a value of type set; allowed are"),
    "an object": ([{"a": object()}], "a value of type object"),
    "a large number": ([{"a": 2**63}], "out of range"),
    "a number that floats lose": ([{"a": 2**60 + 1}, {"a": 0.5}], "column 'a'"),
    "no text": ([{"a": "\ud800"}], "not Unicode text"),
    "no number": ([{"a": Decimal("NaN")}], "Decimal that is not finite"),
    "infinite": ([{"a": Decimal("Infinity")}], "Decimal that is not finite"),
    "mixed inside": ([{"a": [1, "x"]}], "column 'a[]' has values of several types"),
    "mixed deeper": ([{"a": {"b": [1]}}, {"a": {"b": ["x"]}}], "column 'a.b[]'"),
    "empty dicts": ([{"a": {}}], "only empty dicts"),
    "a key that is no text": ([{"a": {1: 2}}], "a key that is not a str"),
    "a column twice": (pyarrow.table([[1], [2]], names=["a", "a"]), "column 'a' is there twice"),
    "an odd index": (pandas.DataFrame({"a": [1]}, index=["x"]), "its index has no name"),
    "objects of polars": (polars.DataFrame({"a": [object()]}), "column 'a' has Python objects"),
    "odd columns": (pandas.DataFrame({0: [1]}), "a column's name is not a str"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_table_is_refused_in_one_sentence_that_names_the_slice(what: str) -> None:
    value, words = REFUSED[what]

    told = refusal(value)

    assert words in told
    assert told.startswith("prices@2024-01-05 ")
    assert "a list of dicts, an Arrow table, a pandas or polars frame, or bytes" in told


def test_a_value_of_a_frame_is_never_shown() -> None:
    told = refusal(pandas.DataFrame({"price": [1, "sk-secret"]}))

    assert "sk-secret" not in told
    assert "column 'price'" in told


def test_nesting_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]

    assert "nested more than 32 deep" in refusal([{"a": deep}])


def test_an_empty_list_is_an_empty_table(root: OutputRoot) -> None:
    empty, full = write(root, []), write(root, [{"a": 1}], NEXT)

    assert empty.rows == 0
    assert slices(root, empty).rows() == []
    assert slices(root, empty, full).rows() == [{"a": 1}]


def test_tables_and_frames_come_back(root: OutputRoot) -> None:
    table = pyarrow.table({"a": [1, None], "b": ["x", "y"]})
    batch = table.to_batches()[0]
    rows = table.to_pylist()

    for value in (table, batch, polars.from_arrow(table)):
        assert slices(root, write(root, value)).rows() == rows


def test_named_indexes_of_pandas_are_columns_and_row_numbers_are_not(root: OutputRoot) -> None:
    frame = pandas.DataFrame({"day": [AT, NEXT], "a": [1, 2]})

    plain = slices(root, write(root, frame[frame["a"] > 1])).rows()
    named = slices(root, write(root, frame.set_index("day"))).rows()

    assert plain == [{"day": NEXT, "a": 2}]
    assert [(row["day"], row["a"]) for row in named] == [(AT, 1), (NEXT, 2)]


@pytest.mark.parametrize("value", [b"", b"\0abc", bytearray(b"x"), memoryview(b"abcd")[::1]])
def test_bytes_are_kept_raw(root: OutputRoot, value: bytes) -> None:
    output = write(root, value)

    assert (output.kind, output.rows) == ("raw", None)
    assert output.path.endswith(".bin")
    assert slices(root, output).bytes() == bytes(value)


TIMES = st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
COLUMNS = st.one_of(
    st.just(st.integers(-(2**63), 2**63 - 1)),
    st.just(st.floats(allow_nan=False)),
    st.just(st.text()),
    st.just(st.binary()),
    st.just(st.booleans()),
    st.just(TIMES),
    st.just(st.dates()),
    st.just(st.decimals(-(10**9), 10**9, places=3)),
    st.just(st.lists(st.integers(-5, 5), max_size=3)),
    st.just(st.fixed_dictionaries({"x": st.integers(-5, 5), "y": st.text(max_size=3)})),
)


@st.composite
def some_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True))
    of = {name: st.none() | draw(COLUMNS) for name in names}
    return draw(st.lists(st.fixed_dictionaries({}, optional=of).filter(bool), max_size=6))


@given(rows=some_rows())
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    root = open_root(tmp_path_factory.mktemp("root"), SeededIds(1))
    names = list(dict.fromkeys(name for row in rows for name in row))

    found = slices(root, write(root, rows)).rows()

    assert found == [{name: row.get(name) for name in names} for row in rows]


def test_duckdb_and_polars_read_the_same_values(root: OutputRoot) -> None:
    rows: list[dict[str, Any]] = [
        {"i": 1, "f": 1.5, "s": "x", "moment": AT, "d": date(2024, 1, 5), "m": Decimal("1.25")},
        {"i": None, "f": None, "s": "ü", "moment": NEXT, "d": None, "m": Decimal("-3.50")},
    ]
    path = str(Path(root.path) / write(root, rows).path)

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        ducks = connection.execute(
            f"SELECT * REPLACE (epoch_us(moment) AS moment) FROM '{path}'"
        ).fetchall()
    bears = polars.read_parquet(path).to_dicts()

    assert ducks == [tuple({**row, "moment": utc_micros(row["moment"])}.values()) for row in rows]
    assert bears == rows


EMPTY_STRUCTS = pyarrow.array([{}, {}], pyarrow.struct([]))


def batch(value: object) -> str:
    with pytest.raises(UsageError) as caught:
        list(encode_slices(value, [utc_micros(AT), utc_micros(NEXT)], PRICES, batch=True))
    return str(caught.value)


def test_a_batch_writes_one_file_for_each_asked_moment(root: OutputRoot) -> None:
    ats = [utc_micros(AT), utc_micros(NEXT)]
    value = {NEXT.astimezone(ZONE): [{"a": 2}], AT: [{"a": 1}]}

    outputs = write_slices(root, PRICES, encode_slices(value, ats, PRICES, batch=True), "1:1")

    assert [output.at for output in outputs] == ats
    assert [one.rows() for one in slices(root, *outputs)] == [[{"a": 1}], [{"a": 2}]]


def test_a_batch_that_is_not_what_was_asked_for_is_refused_by_name() -> None:
    later = NEXT + timedelta(days=1)

    assert "must return a mapping of timestamps to a list of dicts" in batch([{"a": 1}])
    assert "not NoneType" in batch(None)
    assert "lacks prices@2024-01-06." in batch({AT: []})
    assert "has, unasked, prices@2024-01-07." in batch({AT: [], NEXT: [], later: []})
    assert "lacks prices@2024-01-05 and has, unasked, prices@2024-01-07" in batch(
        {NEXT: [], later: []}
    )
    assert "no datetime with a zone" in batch({datetime(2024, 1, 5, 21): []})
    assert "no datetime with a zone" in batch({"2024-01-05": []})
    assert batch({AT: [], NEXT: None}).startswith("prices@2024-01-06 returned nothing")


def test_a_message_names_few_of_many_moments() -> None:
    many: dict[datetime, object] = {AT + timedelta(days=day): [] for day in range(40)}

    assert " and 33 more. Return each" in batch(many)


def test_two_keys_of_one_moment_are_refused() -> None:
    """Two datetimes can be one moment and not be equal, when clocks are turned back."""
    local = datetime(2024, 11, 3, 1, 30, tzinfo=ZONE, fold=1)

    assert "two keys of what it returned are the same moment" in batch(
        {local: [], local.astimezone(UTC): []}
    )


def test_tables_that_parquet_has_no_words_for_are_refused() -> None:
    union = pyarrow.UnionArray.from_dense(
        pyarrow.array([0], pyarrow.int8()),
        pyarrow.array([0], pyarrow.int32()),
        [pyarrow.array([1])],
    )
    bare = pyarrow.Table.from_batches([pyarrow.RecordBatch.from_struct_array(EMPTY_STRUCTS)])

    assert refusal(pyarrow.table({"a": union})).startswith("prices@2024-01-05 cannot be written")
    assert "it has rows but no columns" in refusal(bare)
    assert "cannot be written as a table" in refusal(pandas.DataFrame({"a": [1, "x"]}))
    assert "out of range" in refusal([{"a": [2**70]}])
    assert "Arrow cannot keep its values of type timedelta" in refusal([{"a": timedelta.max}])
