# SPDX-License-Identifier: Apache-2.0
"""Seeds: which record a row gets, from files, rows and frames, and what is refused of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Penstock
from penstock.errors import UsageError
from penstock.tables import seed_source
from penstock.tables.seeds import SeedReader, record_digest

RECORDS = [{"name": f"p{n}", "price": n / 2, "tags": ["a"] * (n % 3)} for n in range(200)]


def reader(source: Any, seed: int = 5, **options: Any) -> SeedReader:
    return SeedReader(Penstock("seeded").table("t").seed("p", source=source, **options), seed)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The same records in every kind of file."""
    import json

    lines = "\n".join(json.dumps(record) for record in RECORDS)
    table = pa.Table.from_pylist(RECORDS)
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=7)
    rows = "".join(f"{one['name']},{one['price']}\n" for one in RECORDS)
    return {
        "jsonl": write(tmp_path / "p.jsonl", f"\n{lines}\n\n"),
        "parquet": tmp_path / "p.parquet",
        "csv": write(tmp_path / "p.csv", f"name,price\n{rows}"),
        "tsv": write(tmp_path / "p.tsv", f"name,price\n{rows}".replace(",", "\t")),
    }


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "tsv"])
@pytest.mark.parametrize("order", ["ordered", "shuffled"])
def test_a_file_gives_the_same_rows_in_pieces_of_any_size(
    files: dict[str, Path], kind: str, order: str
) -> None:
    expected = [{key: one[key] for key in ("name", "price")} for one in RECORDS]
    fields = ["name", "price"]
    whole = reader(files[kind], order=order, fields=fields).rows(0, 450)

    for size in (1, 63, 64, 65, 200, 449):
        made = reader(files[kind], order=order, fields=fields)
        pieces: list[Any] = []
        for first in range(0, 450, size):
            pieces += made.rows(first, min(size, 450 - first))
        assert pieces == whole

    assert sorted(whole[:200], key=lambda one: one["price"]) == expected  # each once in a cycle
    assert (whole[:200] == expected) is (order == "ordered")
    assert (whole[200:400] == whole[:200]) is (order == "ordered")


def test_kinds_of_sources_give_the_same_records(files: dict[str, Path]) -> None:
    import pandas
    import polars

    table = pa.Table.from_pylist(RECORDS)
    sources: list[Any] = [
        RECORDS,
        iter(RECORDS),
        lambda: RECORDS,
        table,
        polars.DataFrame(RECORDS),
        pandas.DataFrame(RECORDS),
        files["jsonl"],
        str(files["parquet"]),
        [files["parquet"]],
        lambda: files["jsonl"],
    ]

    for source in sources:
        made = reader(source)
        rows = [{**row, "tags": list(row["tags"])} for row in made.rows(190, 20)]
        assert rows == RECORDS[190:] + RECORDS[:10]
        assert made.count == 200


@given(
    count=st.integers(1, 30),
    first=st.integers(0, 100),
    size=st.integers(0, 40),
    order=st.sampled_from(["ordered", "shuffled"]),
)
def test_a_row_has_the_record_of_its_number_wherever_a_piece_begins(
    count: int, first: int, size: int, order: str
) -> None:
    made = reader(list(range(count)), order=order)
    one_by_one = [made.rows(row, 1)[0] for row in range(first, first + size)]

    assert made.rows(first, size) == one_by_one


def test_a_shuffled_piece_reads_no_records_but_its_own() -> None:
    class Counted(list[int]):
        taken = 0

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            self.taken += len(found)
            return found

    made = reader(range(10_000), order="shuffled")
    counted = made._source._records = Counted(range(10_000))  # type: ignore[attr-defined]
    made.rows(0, 64)

    assert counted.taken == 64


def test_an_extended_table_goes_on_where_the_cycle_was() -> None:
    made = reader(["a", "b", "c"])

    assert made.rows(0, 4) + reader(["a", "b", "c"]).rows(4, 4) == list("abcabcab")


def test_a_shuffled_seed_is_shuffled_by_the_seed_of_the_table() -> None:
    orders = {tuple(reader(range(20), seed=n, order="shuffled").rows(0, 20)) for n in range(5)}

    assert len(orders) == 5


def test_a_range_of_records_is_a_seed_of_its_own() -> None:
    made = reader(list(range(10)), records=range(2, 5))

    assert (made.count, made.rows(0, 7)) == (3, [2, 3, 4, 2, 3, 4, 2])
    with pytest.raises(UsageError, match="goes beyond its source, which has 10 records"):
        reader(list(range(10)), records=range(5, 11)).rows(0, 1)


def chunks(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, word in enumerate(document["text"].split()):
        yield {"number": number, "word": word}


@pytest.mark.parametrize("order", ["ordered", "shuffled"])
def test_records_are_expanded_to_several_rows(order: str) -> None:
    texts = ["one two", "", "three", "four five six"] * 40
    source = [{"text": text} for text in texts]
    words = [word for text in texts for word in text.split()]

    made = reader(source, expand=lambda one: list(chunks(one)), order=order)
    whole = made.rows(0, made.count)
    pieces = [made.rows(row, 1)[0] for row in range(made.count)]

    assert made.count == len(words) == 240
    assert pieces == whole
    assert sorted(one["word"] for one in whole) == sorted(words)
    if order == "ordered":
        assert [one["word"] for one in whole] == words
    assert [name for name, _ in made.type.fields] == ["number", "word"]


def test_records_of_a_range_are_expanded() -> None:
    made = reader([[1, 2], [3], [4, 5]], expand=lambda one: one, records=range(1, 3))

    assert made.rows(0, 4) == [3, 4, 5, 3]


def test_fields_that_are_missing_in_a_record_are_empty(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", '{"a": 1}\n{"b": "x"}\n')

    assert reader(file).rows(0, 2) == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert reader([{"a": 1}, {"b": "x"}]).rows(1, 1) == [{"a": None, "b": "x"}]


def test_csv_fields_are_what_all_of_their_values_are(tmp_path: Path) -> None:
    text = (
        "\ufeffwhole,number,truth,zip,late,empty,mixed\r\n"
        '1,1.5,true,01234,7,,1\r\n-2,3,FALSE,00001,8,,true\r\n,,,1,nine,,""\r\n'
    )
    made = reader(write(tmp_path / "p.csv", text))

    assert made.rows(0, 3) == [
        {"whole": 1, "number": 1.5, "truth": True, "zip": "01234", "late": "7"}
        | {"empty": "", "mixed": "1"},
        {"whole": -2, "number": 3.0, "truth": False, "zip": "00001", "late": "8"}
        | {"empty": "", "mixed": "true"},
        {"whole": None, "number": None, "truth": None, "zip": "1", "late": "nine"}
        | {"empty": "", "mixed": ""},
    ]


def test_csv_records_may_have_several_lines(tmp_path: Path) -> None:
    body = "".join(f'{n},"line\nof {n}, ""quoted"""\n' for n in range(150))
    made = reader(write(tmp_path / "p.csv", f"n,text\n{body}"))

    assert made.count == 150
    assert made.rows(130, 1) == [{"n": 130, "text": 'line\nof 130, "quoted"'}]


def test_files_of_a_pattern_follow_each_other_with_one_type(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", "n,more\nx,1\n")
    write(tmp_path / "a.csv", "n\n1\n2\n")
    write(tmp_path / "c.jsonl", '{"n": 5}\n')
    rows = [{"n": "1", "more": None}, {"n": "2", "more": None}, {"n": "x", "more": 1}]

    assert reader(str(tmp_path / "*.csv")).rows(0, 4) == [*rows, rows[0]]
    files = [tmp_path / name for name in ("a.csv", "c.jsonl")]
    assert reader(files).rows(0, 3) == [{"n": 1}, {"n": 2}, {"n": 5}]


def test_the_fingerprint_is_that_of_the_rows(tmp_path: Path) -> None:
    def of(text: str, **options: Any) -> str:
        return reader(write(tmp_path / "p.jsonl", text), **options).fingerprint

    one = of("1\n2\n")

    assert of("1\n2\n") == one
    assert of("1\n2\n", seed=6) == one  # it is not shuffled
    others = [
        of("1\n2\n3\n"),
        of("2\n1\n"),
        of("1\n2\n", records=range(1)),
        of("1\n2\n", order="shuffled"),
        of("1\n2\n", order="shuffled", seed=6),
        of("1\n2\n", expand=lambda one: [one]),
    ]
    assert len({one, *others}) == 7
    rows, frame = [{"a": 1}, {"a": 2}], pa.table({"a": [1, 2]})
    assert reader(rows).fingerprint != reader(rows[:1]).fingerprint
    assert reader(frame).fingerprint != reader(frame.slice(0, 1)).fingerprint


def test_records_of_a_row_have_a_digest_of_their_own() -> None:
    one = record_digest({"p": {"a": 1}, "q": "x"})

    assert record_digest({"q": "x", "p": {"a": 1}}) == one
    assert record_digest({"p": {"a": 2}, "q": "x"}) != one


def test_little_of_a_file_is_kept_in_memory(tmp_path: Path) -> None:
    made = reader(write(tmp_path / "p.jsonl", "".join(f'"{n}"\n' for n in range(10_000))))

    assert made.rows(9_999, 1) == ["9999"]
    places = made._source._files[0]._found[0]  # type: ignore[attr-defined]
    assert len(places) == 10_000 // seed_source.STRIDE + 1


def test_a_dataset_is_a_source_by_its_files(files: dict[str, Path]) -> None:
    class Committed:
        def files(self) -> list[Path]:
            return [files["parquet"], files["parquet"]]

    assert reader(Committed()).count == 400


def test_a_file_that_changes_while_it_is_in_use_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", "1\n2\n")
    made = reader(file)
    made.rows(0, 1)
    write(file, "1\n")
    with pytest.raises(UsageError, match=r"'.*p.jsonl' has changed while it was in use; start aga"):
        made.rows(0, 1)

    file.unlink()
    with pytest.raises(UsageError, match=r"cannot be read .* put it back"):
        made.rows(0, 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"a": 1}\n{"a":\n', r"'.*p.jsonl', line 2: this is no JSON"),
        ("p.jsonl", "", "its source has no records"),
        ("p.csv", "a,b\n", "its source has no records"),
        ("p.csv", "", "its source has no records"),
        ("p.csv", "a,b\n1,2\n3\n", r"line 3: it has 1 field, and the first line has 2"),
        ("p.csv", "a,b\n1,2,3\n", r"line 2: it has 3 fields"),
        ("p.csv", "a,a\n1,2\n", "the field 'a' is there twice; the first line names fields"),
        ("p.csv", "a,,b\n1,2,3\n", "the field '' has no name"),
        ("p.csv", 'a\n"x', r"line 2: unexpected end of data"),
        ("p.parquet", "nothing", "is no Parquet file that can be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        reader(write(tmp_path / name, text)).rows(0, 1)


def test_a_text_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(b"a\n\xff\xfe\n")
    (tmp_path / "p.jsonl").write_bytes(b'"\xff"\n')

    with pytest.raises(UsageError, match="line 2: it is not UTF-8"):
        reader(tmp_path / "p.csv").rows(0, 1)
    with pytest.raises(UsageError, match="line 1: this is no JSON"):
        reader(tmp_path / "p.jsonl").rows(0, 1)


def test_a_missing_file_is_refused_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no file '{os.getcwd()}/p.csv'; put it there"):
        reader("p.csv").rows(0, 1)
    with pytest.raises(UsageError, match=r"no file matches '/.*/none-\*.csv'; put one there"):
        reader("none-*.csv").rows(0, 1)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([], {}, "Seed 'p': its source has no records; a seed needs one at least"),
        ([{"a": object()}], {}, "record 1 holds a value of type object; records are plain data"),
        ([{1: 2}], {}, "record 1 holds a mapping whose keys are no texts"),
        ([2**63], {}, "record 1 holds a whole number outside 64 bits"),
        ([{"name": 1}], {"fields": ["nmae"]}, "its records have no field 'nmae'; they have 'name'"),
        (["x"], {"fields": ["name"]}, "have no field 'name'; they have none"),
        ([{"a": 1}], {"expand": lambda one: one["b"]}, "expand= raised KeyError for a record"),
        ([{"a": 1}], {"expand": lambda one: "text"}, "expand= raised TypeError for a record"),
        (
            [{"a": 1}],
            {"expand": lambda one: [object()]},
            "what expand= makes of a record holds a value of",
        ),
        ([{"a": 1}], {"expand": lambda one: []}, "its source has no records"),
        (pa.table({"a": [1]}), {"fields": ["b"]}, "have no field 'b'; they have 'a'"),
    ],
)
def test_records_that_are_no_data_are_refused(
    source: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        reader(source, **options).rows(0, 1)


def test_a_set_has_no_order_to_rely_on() -> None:
    with pytest.raises(UsageError, match=r"a set has another order at every start; write source=s"):
        reader({"a", "b"})
