# SPDX-License-Identifier: Apache-2.0
"""Is JSON found in what models write, checked by its schema, and never quoted where it fails?"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from penstock.errors import UsageError
from penstock.model.table import Criterion
from penstock.tables.chat import AnswerRejected
from penstock.tables.structured import RubricType, documents_in, structured_type


class Score(BaseModel):
    stars: int
    reason: str


class Kind(BaseModel):
    kind: Literal["a", "b"]
    inside: list[Score] = []


SCHEMA = {
    "type": "object",
    "properties": {"stars": {"type": "integer", "maximum": 5}, "reason": {"type": "string"}},
    "required": ["stars", "reason"],
    "additionalProperties": False,
}
GOOD = {"stars": 4, "reason": "It is warm."}
RUBRIC = RubricType([Criterion("helpful", 1, 5), Criterion("true to the product", 1, 5)])

either = pytest.mark.parametrize("schema", [Score, SCHEMA], ids=["pydantic", "json schema"])


def rejection(kind: Any, text: str) -> AnswerRejected:
    with pytest.raises(AnswerRejected) as caught:
        kind.parse(text)
    assert "SECRET" not in caught.value.reason
    return caught.value


@either
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        f"```json\n{json.dumps(GOOD)}\n```",
        f"```\n{json.dumps(GOOD, indent=2)}\n```\nI hope this helps!",
        f"Sure! Here it is: {json.dumps(GOOD)}. Anything else?",
        f"First {{not json}} and then {json.dumps(GOOD)}",
        f'A draft {{"stars": "?"}}, then:\n```json\n{json.dumps(GOOD)}\n```',
        f"\ufeff\n{json.dumps(GOOD)}".lstrip("\ufeff"),
    ],
)
def test_the_document_is_found_in_what_is_written_around_it(schema: Any, text: str) -> None:
    assert structured_type(schema).parse(text) == GOOD


@either
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SECRET", "no JSON"),
        ("", "no JSON"),
        ("{" * 5_000, "no JSON"),
        ('{"stars": NaN, "reason": "SECRET"}', "no JSON"),
        ('{"stars": 4}', "schema"),
        ('{"stars": "SECRET", "reason": "SECRET"}', "schema"),
        ('[{"SECRET": 1}]', "schema"),
        ('"SECRET"', "schema"),
    ],
)
def test_what_does_not_fit_is_rejected_without_a_quote(schema: Any, text: str, kind: str) -> None:
    assert rejection(structured_type(schema), text).kind == kind


def test_a_rejection_says_where_the_fault_is() -> None:
    assert rejection(structured_type(Score), '{"stars": []}').reason == (
        "the answer breaks its schema (stars: int type; reason: missing)"
    )
    reason = rejection(structured_type(SCHEMA), '{"stars": 9, "reason": "", "SECRET": 1}').reason
    assert "stars: breaks the rule 'maximum'" in reason
    assert "additionalProperties" in reason


def test_names_that_the_model_has_made_up_are_not_quoted() -> None:
    loose = structured_type({"type": "object", "additionalProperties": {"type": "integer"}})
    assert "…: breaks the rule 'type'" in rejection(loose, '{"SECRET": "x"}').reason


def test_many_faults_are_counted() -> None:
    text = json.dumps({"kind": "a", "inside": [{} for _ in range(9)]})
    assert "and 13 more" in rejection(structured_type(Kind), text).reason


def test_a_value_is_kept_as_its_model_writes_it() -> None:
    assert structured_type(Score).parse('{"stars": "4", "reason": "", "more": 1}') == {
        "stars": 4,
        "reason": "",
    }


def test_a_scalar_may_be_wanted() -> None:
    assert structured_type({"type": "integer"}).parse(" 4 ") == 4


def test_the_hint_is_the_schema() -> None:
    for schema in (Score, SCHEMA):
        hint = structured_type(schema).prompt_hint
        assert json.loads(hint.partition("\n")[2])["required"] == ["stars", "reason"]


def test_a_schema_that_is_none_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match="wrong at properties/stars/type"):
        structured_type({"properties": {"stars": {"type": "whole"}}})


# ── Rubrics ───────────────────────────────────────────────────────────────────────────────────────

BOTH = {
    "helpful": {"score": 4, "reason": "yes"},
    "true to the product": {"score": 5, "reason": ""},
}


@pytest.mark.parametrize(
    "answer",
    [
        BOTH,
        {"scores": BOTH},
        {"Helpful": {"rating": "4/5", "reasoning": "yes"}, "true_to_the_product": "5"},
        {"helpful": 4.0, "helpful_reason": "yes", "True-to-the-Product": 5},
        [
            {"name": "helpful", "score": "Score: 4 of 5", "explanation": "yes"},
            {"criterion": "true to the product", "grade": 5},
        ],
        {"ratings": [{"name": "Helpful", "Score": 4, "Reason": "yes"},
                     {"name": "true to the product", "score": "5"}]},
        {**BOTH, "overall": {"score": 99}},
    ],
)  # fmt: skip
def test_scores_are_understood_in_many_forms(answer: object) -> None:
    assert RUBRIC.parse(f"Here: {json.dumps(answer)}") == BOTH


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"helpful": 4}, "true to the product: missing"),
        ({**BOTH, "helpful": {"score": 6}}, "helpful: not from 1 to 5"),
        ({**BOTH, "helpful": "SECRET"}, "helpful: not a whole number"),
        ({**BOTH, "helpful": True}, "helpful: not a whole number"),
        ({**BOTH, "helpful": 4.5}, "helpful: not a whole number"),
        ({"SECRET": 4}, "helpful: missing; true to the product: missing"),
    ],
)
def test_scores_that_are_missing_or_out_of_range_are_asked_for_again(
    answer: object, reason: str
) -> None:
    assert reason in rejection(RUBRIC, json.dumps(answer)).reason


def test_prose_is_no_score() -> None:
    assert rejection(RUBRIC, "I like SECRET a lot.").kind == "no JSON"


def test_the_hint_of_a_rubric_is_in_the_form_that_is_understood() -> None:
    hint = RUBRIC.prompt_hint
    assert "helpful: a whole number from 1 to 5" in hint
    assert RUBRIC.parse(hint.rpartition("\n")[2])["helpful"]["score"] == 5
    assert RUBRIC.json_schema["required"] == ["helpful", "true to the product"]


# ── Any text ──────────────────────────────────────────────────────────────────────────────────────

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.text(max_size=5), plain, max_size=3)
prose = st.text(alphabet=st.characters(exclude_characters='{}[]`"'), max_size=40)


@given(before=prose, document=documents, after=prose)
def test_any_document_is_found_between_any_words(
    before: str, document: dict[str, Any], after: str
) -> None:
    text = f"{before} {json.dumps(document)} {after}"
    assert document in list(documents_in(text))


@given(text=st.text(max_size=200) | st.text(alphabet='{}[]"`:,\\ 1a', max_size=200))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for kind in (structured_type(Score), structured_type(SCHEMA), RUBRIC):
        with contextlib.suppress(AnswerRejected):  # nothing else may come out of it
            kind.parse(text)
