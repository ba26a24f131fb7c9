# SPDX-License-Identifier: Apache-2.0
"""Answers that must be JSON of a schema, or scores of a rubric: found in a text, checked, coerced.

A model may write around its JSON, fence it, or count "4/5" where a number was wanted: what can be
understood is taken. What cannot is rejected with a reason for the model and for the user, which
says where the fault is and quotes nothing of the answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from penstock.errors import ConfigError, UsageError
from penstock.model.table import Criterion
from penstock.tables.chat import AnswerRejected

REASONS_MAX = 5  # faults of one answer that are listed
TEXT_MAX = 1_000_000  # characters in which JSON is looked for
STARTS_MAX = 200  # places where JSON may begin

_FENCED = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_UNREADABLE = (ValueError, RecursionError)  # also what is no text
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NOT_A_LETTER = re.compile(r"[^a-z0-9]+")

_REASON_NAMES = ("reason", "reasoning", "rationale", "explanation", "justification", "comment")
_SCORE_NAMES = ("score", "rating", "value", "grade")
_NAME_NAMES = ("name", "criterion", "dimension", "aspect")


class AnswerType(Protocol):
    """What an answer must be."""

    @property
    def json_schema(self) -> dict[str, Any]: ...

    @property
    def prompt_hint(self) -> str:
        """What the model is told of it, at the end of the prompt."""
        ...

    def parse(self, text: str) -> Any:  # noqa: ANN401 (JSON)
        """Return the value in an answer, as plain JSON.

        Raises:
            AnswerRejected: there is none, or it breaks a rule.
        """
        ...


def structured_type(schema: Any) -> AnswerType:  # noqa: ANN401 (a model, or JSON)
    """Return the type of answers that a pydantic model or a JSON schema describes."""
    return JsonSchemaType(schema) if isinstance(schema, Mapping) else PydanticType(schema)


class PydanticType:
    """JSON that a pydantic model accepts; kept as the model writes it."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 (a class of pydantic)
        from pydantic import TypeAdapter

        self._adapter = TypeAdapter(model)
        self.json_schema: dict[str, Any] = self._adapter.json_schema()
        self._names = frozenset(_names(self.json_schema))

    @property
    def prompt_hint(self) -> str:
        return _hint(self.json_schema)

    def parse(self, text: str) -> Any:  # noqa: ANN401 (JSON)
        from pydantic import ValidationError

        rejected: AnswerRejected | None = None
        for found in documents_in(text):
            try:
                value = self._adapter.validate_json(json.dumps(found))
            except ValidationError as error:
                faults = error.errors(include_url=False, include_input=False, include_context=False)
                rejected = rejected or _broken(
                    ((one["loc"], one["type"].replace("_", " ")) for one in faults), self._names
                )
                continue
            return self._adapter.dump_python(value, mode="json")
        raise rejected or _no_json()


class JsonSchemaType:
    """JSON that follows a JSON schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            from jsonschema import SchemaError
            from jsonschema.validators import validator_for
        except ImportError:
            raise ConfigError(
                "A JSON schema was given, and the package that checks it is not installed; "
                "run 'pip install jsonschema'."
            ) from None
        self.json_schema = dict(schema)
        kind: Any = validator_for(self.json_schema)
        try:
            kind.check_schema(self.json_schema)
        except SchemaError as error:
            where = "/".join(map(str, error.absolute_path)) or "its root"
            raise UsageError(
                f"The JSON schema is wrong at {where}: {error.message:.200}."
            ) from None
        self._validator = kind(self.json_schema)
        self._names = frozenset(_names(self.json_schema))

    @property
    def prompt_hint(self) -> str:
        return _hint(self.json_schema)

    def parse(self, text: str) -> Any:  # noqa: ANN401 (JSON)
        rejected: AnswerRejected | None = None
        for found in documents_in(text):
            faults = [(one.absolute_path, one.validator) for one in self._errors(found)]
            if not faults:
                return found
            rejected = rejected or _broken(
                ((where, f"breaks the rule {rule!r}") for where, rule in faults), self._names
            )
        raise rejected or _no_json()

    def _errors(self, value: object) -> list[Any]:
        return sorted(self._validator.iter_errors(value), key=lambda one: str(one.absolute_path))


class RubricType:
    """A score and a reason for each line of a rubric."""

    def __init__(self, rubric: Sequence[Criterion]) -> None:
        self._rubric = {_plain(one.name): one for one in rubric}

    @property
    def json_schema(self) -> dict[str, Any]:
        lines = {
            one.name: {
                "type": "object",
                "properties": {
                    "score": {"type": "integer", "minimum": one.low, "maximum": one.high},
                    "reason": {"type": "string"},
                },
                "required": ["score", "reason"],
            }
            for one in self._rubric.values()
        }
        return {"type": "object", "properties": lines, "required": list(lines)}

    @property
    def prompt_hint(self) -> str:
        lines = "\n".join(
            f"- {one.name}: a whole number from {one.low} to {one.high}"
            + (f" ({one.meaning})" if one.meaning else "")
            for one in self._rubric.values()
        )
        form = {one.name: {"score": one.high, "reason": "…"} for one in self._rubric.values()}
        return (
            f"Score each of these:\n{lines}\nAnswer with JSON only, in this form:\n"
            + json.dumps(form, ensure_ascii=False)
        )

    def parse(self, text: str) -> Any:  # noqa: ANN401 (JSON)
        rejected: AnswerRejected | None = None
        for found in documents_in(text):
            given = dict(_lines(found))
            faults = list(self._faults(given))
            if not faults:
                return {
                    one.name: {"score": _score(given[name][0]), "reason": given[name][1]}
                    for name, one in self._rubric.items()
                }
            if given or rejected is None:
                rejected = _broken(faults, frozenset(one.name for one in self._rubric.values()))
        raise rejected or _no_json()

    def _faults(self, given: Mapping[str, tuple[object, str]]) -> Iterator[tuple[Any, str]]:
        for name, one in self._rubric.items():
            if name not in given:
                yield [one.name], "missing"
                continue
            score = _score(given[name][0])
            if score is None:
                yield [one.name], "not a whole number"
            elif not one.low <= score <= one.high:
                yield [one.name], f"not from {one.low} to {one.high}"


def _lines(found: object) -> Iterator[tuple[str, tuple[object, str]]]:
    """The scores in a document, by plain name, whichever form its writer gave them."""
    if isinstance(found, list):
        for one in found:
            name = _first(one, _NAME_NAMES)
            if isinstance(name, str):
                yield _plain(name), _scored(one)
        return
    if not isinstance(found, dict):
        return
    if len(found) == 1:  # {"scores": {…}}
        (inside,) = found.values()
        if isinstance(inside, list) or (
            isinstance(inside, dict) and _first(inside, _SCORE_NAMES) is None
        ):
            yield from _lines(inside)
            return
    for name, given in found.items():
        scored = _scored(given)
        reason = found.get(f"{name}_reason")
        yield _plain(name), (scored[0], reason if isinstance(reason, str) else scored[1])


def _scored(given: object) -> tuple[object, str]:
    """A score and its reason: an object of both, or the score alone."""
    if not isinstance(given, dict):
        return given, ""
    reason = _first(given, _REASON_NAMES)
    return _first(given, _SCORE_NAMES), reason if isinstance(reason, str) else ""


def _first(given: object, names: Sequence[str]) -> object:
    if not isinstance(given, dict):
        return None
    plain = {_plain(str(name)): value for name, value in given.items()}
    return next((plain[name] for name in names if name in plain), None)


def _score(given: object) -> int | None:
    """A whole number: as such, as "4", or as the first number of "4/5" and "Score: 4 of 5"."""
    if isinstance(given, str):
        found = _NUMBER.search(given)
        given = float(found[0]) if found else None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        return None
    return int(given) if given == int(given) else None


def _plain(name: str) -> str:
    return _NOT_A_LETTER.sub(" ", name.lower()).strip()


# ── JSON in a text ────────────────────────────────────────────────────────────────────────────────


def documents_in(text: str) -> Iterator[Any]:
    """Return the JSON documents in a text, the most likely first.

    All of it; what is fenced, the last first; objects and arrays that begin anywhere, but not
    those inside of one that was found.
    """
    text = text.strip()[:TEXT_MAX]
    for whole in (text, *reversed(_FENCED.findall(text))):
        try:
            yield msgspec.json.decode(whole.strip())
        except _UNREADABLE:
            continue
    at = 0
    for _ in range(STARTS_MAX):
        found = _OPENING.search(text, at)
        if found is None:
            return
        try:
            value, at = _decoder.raw_decode(text, found.start())
        except _UNREADABLE:
            at = found.end()
            continue
        yield value


def _no_constant(name: str) -> Any:  # noqa: ANN401 (never returns)
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _hint(schema: Mapping[str, Any]) -> str:
    written = json.dumps(schema, ensure_ascii=False, sort_keys=False)
    return f"Answer with JSON only, which follows this JSON schema:\n{written}"


def _no_json() -> AnswerRejected:
    return AnswerRejected("no JSON", "the answer has no JSON in it")


def _names(schema: object) -> Iterator[str]:
    """The names of properties that a schema knows: others in an answer are its own words."""
    if isinstance(schema, Mapping):
        yield from schema.get("properties", {})
    inside = schema.values() if isinstance(schema, Mapping) else schema
    if isinstance(inside, Iterable) and not isinstance(inside, str):
        for one in inside:
            yield from _names(one)


def _broken(
    faults: Iterable[tuple[Iterable[object], str]], names: frozenset[str]
) -> AnswerRejected:
    told = []
    for where, rule in faults:
        parts = [str(one) if isinstance(one, int) or one in names else "…" for one in where]
        told.append(f"{'.'.join(parts) or 'the whole'}: {rule}")
    more = len(told) - REASONS_MAX
    text = "; ".join(told[:REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")
    return AnswerRejected("schema", f"the answer breaks its schema ({text})")
