# SPDX-License-Identifier: Apache-2.0
"""Is scheduling metadata taken as it is meant, or refused with a code and a sentence?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import SchedulingMetadata
from penstock.errors import SchedulingMetadataCode, SchedulingMetadataError, UsageError
from penstock.model.task import SupportsSchedulingMetadata, metadata_of

NAMES = st.text(alphabet="ab:%/+", min_size=1, max_size=4)


class Column:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def get_scheduling_metadata(self) -> SchedulingMetadata:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


def test_the_default_is_local_and_weighs_one() -> None:
    metadata = SchedulingMetadata()

    assert (metadata.kind, metadata.identity, metadata.weight) == ("local", ("local", "default"), 1)


def test_each_kind_has_a_constructor_with_its_identity() -> None:
    assert SchedulingMetadata.local() == SchedulingMetadata()
    assert SchedulingMetadata.local("parse") == SchedulingMetadata("local", ("local", "parse"), 1)
    assert SchedulingMetadata.model("openai", "gpt-5", "chat", weight=32) == SchedulingMetadata(
        "model", ("model", "openai", "gpt-5", "chat"), 32
    )
    assert SchedulingMetadata.custom_model("acme", "ranker", "2") == SchedulingMetadata(
        "custom_model", ("custom_model", "acme", "ranker", "2"), 1
    )


@pytest.mark.parametrize("kind", ["gpu", "", None, 5, ("local",), ["local"]])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(
        SchedulingMetadataError, match="'local', 'model' or 'custom_model', got"
    ) as e:
        SchedulingMetadata(kind, ("local", "x"))

    assert e.value.code is SchedulingMetadataCode.BAD_KIND
    assert e.value.fallback is None


@pytest.mark.parametrize(
    ("kind", "identity"),
    [
        ("local", ("local",)),
        ("local", ("local", "a", "b")),
        ("local", ("model", "a")),
        ("local", ["local", "a"]),
        ("local", "local"),
        ("local", None),
        ("local", ("local", "")),
        ("local", ("local", " a")),
        ("local", ("local", "a\n")),
        ("local", ("local", "\ud800")),
        ("local", ("local", "a" * 257)),
        ("local", ("local", 5)),
        ("model", ("model", "openai", "gpt-5")),
        ("model", ("model", "openai", "", "chat")),
        ("custom_model", ("custom_model", "acme", "ranker")),
        ("custom_model", ("model", "acme", "ranker", "1")),
    ],
)
def test_an_identity_of_another_shape_is_refused(kind: Any, identity: Any) -> None:
    with pytest.raises(
        SchedulingMetadataError, match=f"of '{kind}' metadata is .*, got "
    ) as caught:
        SchedulingMetadata(kind, identity)

    assert caught.value.code is SchedulingMetadataCode.BAD_IDENTITY


@pytest.mark.parametrize("weight", [0, -1, 1.0, True, "2", None, 1_000_001])
def test_a_weight_is_a_whole_positive_number(weight: Any) -> None:
    with pytest.raises(SchedulingMetadataError) as caught:
        SchedulingMetadata.local("parse", weight=weight)

    assert caught.value.code is SchedulingMetadataCode.BAD_WEIGHT
    assert str(caught.value) == (
        f"The weight of ('local', 'parse') is a whole number from 1 to 1,000,000, got {weight!r}."
    )


def test_the_error_is_the_users_move() -> None:
    assert issubclass(SchedulingMetadataError, UsageError)


def test_an_object_that_gives_metadata_is_accepted() -> None:
    metadata = SchedulingMetadata.local("parse", weight=2)

    assert metadata_of(metadata) is metadata
    assert metadata_of(Column(metadata)) is metadata
    assert isinstance(Column(metadata), SupportsSchedulingMetadata)


@pytest.mark.parametrize("source", [5, None, "local", {"kind": "local"}, Column])
def test_anything_else_is_no_metadata(source: object) -> None:
    with pytest.raises(SchedulingMetadataError, match="object with get_scheduling_metadata") as e:
        metadata_of(source)

    assert e.value.code is SchedulingMetadataCode.NOT_METADATA


def test_an_object_that_gives_something_else_is_named() -> None:
    with pytest.raises(SchedulingMetadataError) as caught:
        metadata_of(Column(5))

    assert caught.value.code is SchedulingMetadataCode.NOT_METADATA
    assert str(caught.value) == (
        "Column.get_scheduling_metadata() gives a SchedulingMetadata, got 5."
    )


def test_an_object_that_raises_is_named() -> None:
    with pytest.raises(SchedulingMetadataError) as caught:
        metadata_of(Column(ValueError("no model.")))

    assert caught.value.code is SchedulingMetadataCode.SOURCE_FAILED
    assert str(caught.value) == ("Column.get_scheduling_metadata() raised ValueError: no model.")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_with_a_fallback_passes_as_it_is() -> None:
    error = SchedulingMetadataError(
        SchedulingMetadataCode.SOURCE_FAILED, "No model.", SchedulingMetadata.local("x"), {"a": "b"}
    )

    with pytest.raises(SchedulingMetadataError) as caught:
        metadata_of(Column(error))

    assert caught.value is error
    assert error.fallback == SchedulingMetadata.local("x")
    assert error.diagnostics == {"a": "b"}


def test_a_name_that_looks_like_another_escaped_is_not_that_one() -> None:
    keys = {SchedulingMetadata.local(name).group_key for name in ("a:", "a%3A", "a%253A")}

    assert keys == {"local:a%3A", "local:a%253A", "local:a%25253A"}


@given(one=st.tuples(NAMES, NAMES, NAMES), two=st.tuples(NAMES, NAMES, NAMES))
def test_two_identities_never_have_the_same_key(
    one: tuple[str, str, str], two: tuple[str, str, str]
) -> None:
    keys = [SchedulingMetadata.model(*names, weight=1).group_key for names in (one, two)]

    assert (keys[0] == keys[1]) == (one == two)


class Unshown(Exception):
    def __str__(self) -> str:
        raise OSError("not me")

    __repr__ = __str__


class NoAttributes:
    def __getattr__(self, name: str) -> Any:
        raise OSError("nothing here")


class Gives:
    def get_scheduling_metadata(self) -> object:
        return Unshown()


@pytest.mark.parametrize(
    "make", [lambda: Column(Unshown()), Unshown, Gives, NoAttributes], ids=["a", "b", "c", "d"]
)
def test_what_cannot_even_be_shown_is_refused_with_a_sentence(make: Callable[[], object]) -> None:
    with pytest.raises(SchedulingMetadataError, match=r"get_scheduling_metadata\(\)"):
        metadata_of(make())
