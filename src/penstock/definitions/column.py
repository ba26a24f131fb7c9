# SPDX-License-Identifier: Apache-2.0
"""The columns of a table as declared: one frozen definition of each kind.

What makes the values of a column is its definition, digested in `definition`; whether it is in the
output and what follows its failures is not part of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from penstock.definitions.provider import Model
from penstock.definitions.row_function import RowFunction
from penstock.definitions.task import ASYNC, THREAD
from penstock.definitions.template import Condition, Template
from penstock.model.provider import Endpoint
from penstock.model.table import ColumnKind, Criterion, OnFail, Sampler, SeedOrder
from penstock.model.task import MetadataSource


class SkipRule(msgspec.Struct, frozen=True):
    """When a cell is not made."""

    when: Condition
    value: Any = None  # what stands there instead
    dependants: bool = False  # whether the cells that need it are not made either


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """What every column has."""

    kind: ClassVar[ColumnKind]
    name: str
    needs: tuple[str, ...] = ()  # other columns of the same row, in order
    keep: bool = True  # whether it is in the output
    on_fail: OnFail = OnFail.DROP
    attempts: int = 1
    skip: SkipRule | None = None
    version: str | None = None  # the author's own mark of a change

    @property
    def needs_group(self) -> bool:
        """Whether it is made for a whole row group at once."""
        return False

    @property
    def slot(self) -> str | None:
        """Where its cells run; None: they take no slot."""
        return None

    @property
    def definition(self) -> str:
        """A digest of what makes its values; what it needs has digests of its own."""
        skip = self.skip and (self.skip.when.text, self.skip.value, self.skip.dependants)
        return digest(self.kind, self.version, skip, self.described())

    def described(self) -> tuple[object, ...]:
        """What of its kind makes its values."""
        return ()


class SeedColumn(Column, frozen=True, kw_only=True):
    """Records of a source, one for each row."""

    kind: ClassVar[ColumnKind] = ColumnKind.SEED
    source: Any
    order: SeedOrder = SeedOrder.ORDERED
    records: range | None = None  # which of them; None: all
    fields: tuple[str, ...] | None = None  # of a record; None: all
    expand: RowFunction | None = None  # makes several records of one

    def described(self) -> tuple[object, ...]:
        """Nothing but its fields: records are compared, so that one more changes no other."""
        return (self.fields,)


class SampleColumn(Column, frozen=True, kw_only=True):
    """Values that are drawn."""

    kind: ClassVar[ColumnKind] = ColumnKind.SAMPLE
    sampler: Sampler
    when: Condition | None = None
    otherwise: Sampler | None = None

    def described(self) -> tuple[object, ...]:
        return self.name, self.sampler, self.when and self.when.text, self.otherwise


class ExpressionColumn(Column, frozen=True, kw_only=True):
    """A template over other columns."""

    kind: ClassVar[ColumnKind] = ColumnKind.EXPRESSION
    template: Template
    type: type[str | int | float | bool] = str

    def described(self) -> tuple[object, ...]:
        return self.template.text, self.type.__name__


class LlmColumn(Column, frozen=True, kw_only=True):
    """Answers of a language model, as text or as JSON of a schema."""

    kind: ClassVar[ColumnKind] = ColumnKind.LLM
    model: Model
    prompt: Template
    system: Template | None = None
    schema: Any = None  # a pydantic model or a JSON schema; None: text
    parameters: Mapping[str, Any] = {}  # above those of the model
    images: tuple[str, ...] = ()  # columns that name files
    documents: tuple[str, ...] = ()

    @property
    def slot(self) -> str | None:
        return ASYNC

    def described(self) -> tuple[object, ...]:
        asked = self.prompt.text, self.system and self.system.text, json_schema(self.schema)
        return *described_model(self.model, self.parameters), *asked, self.images, self.documents


class JudgeColumn(Column, frozen=True, kw_only=True):
    """Scores with reasons, by a language model."""

    kind: ClassVar[ColumnKind] = ColumnKind.JUDGE
    model: Model
    of: tuple[str, ...]
    rubric: tuple[Criterion, ...]
    prompt: Template | None = None  # what the judge is told beside that
    system: Template | None = None
    parameters: Mapping[str, Any] = {}

    @property
    def slot(self) -> str | None:
        return ASYNC

    def described(self) -> tuple[object, ...]:
        told = self.prompt and self.prompt.text, self.system and self.system.text
        return *described_model(self.model, self.parameters), self.of, self.rubric, *told


class CheckColumn(Column, frozen=True, kw_only=True):
    """Whether a row is as it should be: by a function, a JSON schema, or SQL over its group."""

    kind: ClassVar[ColumnKind] = ColumnKind.CHECK
    predicate: RowFunction | None = None
    of: str | None = None  # the column that a schema is about
    schema: Any = None
    sql: str | None = None  # a truth for each row of the relation `rows`

    @property
    def needs_group(self) -> bool:
        return self.sql is not None

    def described(self) -> tuple[object, ...]:
        code = self.predicate and self.predicate.code
        return code, self.of, json_schema(self.schema), self.sql


class FunctionColumn(Column, frozen=True, kw_only=True):
    """What a function of the user returns, for a row or for a whole row group."""

    kind: ClassVar[ColumnKind] = ColumnKind.FUNCTION
    function: RowFunction
    batch: bool = False
    metadata: MetadataSource | None = None
    uses: tuple[Endpoint, ...] = ()

    @property
    def needs_group(self) -> bool:
        return self.batch

    @property
    def slot(self) -> str | None:
        return ASYNC if self.function.is_async else THREAD

    def described(self) -> tuple[object, ...]:
        return self.function.code, self.batch


def described_model(model: Model, parameters: Mapping[str, Any]) -> tuple[object, ...]:
    """Who answers, and what is said to it in every request."""
    return model.provider.name, model.name, {**model.parameters, **parameters}


def json_schema(schema: Any) -> Any:  # noqa: ANN401 (JSON)
    """A JSON schema, from a pydantic model if it is one, without importing pydantic."""
    make: Callable[[], Any] | None = getattr(schema, "model_json_schema", None)
    return schema if make is None else make()


def digest(*parts: object) -> str:
    """Of plain values, the same in every process."""
    text = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
