# SPDX-License-Identifier: Apache-2.0
"""Templates and conditions over the columns of a row: Jinja2, in its sandbox.

A template is read when it is made, so that a mistake is refused there: bad syntax, an unknown
filter, another file, what the sandbox would refuse. It names the columns that it reads, and of a
record the fields. A missing value is an error, an empty one (None) is an empty text, and what is
nested is written as JSON.

The only module that imports jinja2, which is installed with the extra `tables`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.model.table import Row

if TYPE_CHECKING:
    from jinja2 import Environment, Undefined
    from jinja2.nodes import Node
    from jinja2.nodes import Template as Tree

#: What templates may call besides filters; no column has such a name.
GLOBALS = ("dict", "namespace", "range")


class TemplateFailed(Exception):
    """A template cannot be rendered with the values of a row; the text quotes none of them."""


class Template:
    """A text with places for the columns of a row."""

    def __init__(self, text: str, where: str) -> None:
        """Read it.

        Args:
            text: such as "Write about {{ product.name }}."
            where: what a refusal begins with, such as "Column 'review', prompt=".
        """
        if not isinstance(text, str):
            raise UsageError(f"{where} is a text, got {text!r:.100}.")
        self.text = text
        self._where = where
        tree = _parsed(text, where)
        self.variables, self.fields = _read_names(tree, where)
        self._template = _environment().from_string(tree)

    def __repr__(self) -> str:
        return f"<Template of {self._where}>"

    def render(self, row: Row) -> str:
        """The text for a row; TemplateFailed if a value is missing or not of the kind needed."""
        return str(_run(self, lambda: self._template.render(_given(self, row))))


class Condition:
    """One expression over the columns of a row that is true or not: "{{ stars > 3 }}"."""

    def __init__(self, text: str, where: str) -> None:
        if not isinstance(text, str):
            raise UsageError(f"{where} is a text such as '{{{{ stars > 3 }}}}', got {text!r:.100}.")
        self.text = _expression_of(text, where)
        self._where = where
        tree = _parsed(f"{{{{ {self.text} }}}}", where)
        self.variables, self.fields = _read_names(tree, where)
        self._value = _environment().compile_expression(self.text, undefined_to_none=False)

    def __repr__(self) -> str:
        return f"<Condition of {self._where}>"

    def holds(self, row: Row) -> bool:
        """Whether it is true of a row; TemplateFailed as for a template."""
        return bool(_run(self, lambda: bool(self._value(**_given(self, row)))))


def _given(reader: Template | Condition, row: Row) -> dict[str, Any]:
    return {name: row[name] for name in reader.variables if name in row}


def _run(reader: Template | Condition, work: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Let it work, and turn whatever goes wrong into one error that quotes no value."""
    from jinja2 import UndefinedError

    try:
        return work()
    except UndefinedError as error:
        raise TemplateFailed(_missing(reader, error)) from None
    except Exception as error:  # of an operator, a filter, a method: it may quote what it was given
        raise TemplateFailed(
            f"the values of the row do not fit the template ({type(error).__name__})"
        ) from None


def _missing(reader: Template | Condition, error: Exception) -> str:
    """Name the field that is missing if it stands in the template itself, not in a value."""
    text = str(error)
    for column, fields in reader.fields.items():
        for field in fields:
            if text.endswith(f"has no attribute {field!r}"):
                return f"{column!r} has no field {field!r}"
    for column in reader.variables:
        if text == f"{column!r} is undefined":
            return f"the row has no {column!r}"
    return "a value that the template asks for is not there"


@cache
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class RowEnvironment(ImmutableSandboxedEnvironment):
        """Prefers the fields of a record to the methods of its type, as `order.items` means."""

        def getattr(self, obj: Any, attribute: str) -> Any | Undefined:  # noqa: ANN401
            if isinstance(obj, Mapping) and attribute in obj:
                return obj[attribute]
            return super().getattr(obj, attribute)

    environment = RowEnvironment(
        autoescape=False,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=_written,
    )
    known = dict(environment.globals)
    environment.globals.clear()
    environment.globals.update({name: known[name] for name in GLOBALS})
    environment.filters["tojson"] = _json
    return environment


def _written(value: Any) -> Any:  # noqa: ANN401
    """A value as it stands in a text."""
    if value is None:
        return ""
    return _json(value) if isinstance(value, dict | list | tuple) else value


def _json(value: Any, indent: int | None = None) -> str:  # noqa: ANN401
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def _expression_of(text: str, where: str) -> str:
    """What stands between the braces, if there are any."""
    inner = text.strip()
    if inner.startswith("{{") and inner.endswith("}}"):
        inner = inner[2:-2].strip()
    if not inner or "{{" in inner or "{%" in inner:
        raise UsageError(
            f"{where} is one expression such as '{{{{ stars > 3 }}}}', got {text!r:.100}."
        )
    return inner


def _parsed(text: str, where: str) -> Tree:
    try:
        return _environment().parse(text)
    except Exception as error:  # of Jinja2's lexer and parser, whatever its kind
        raise _refused(where, error) from None


def _refused(where: str, error: Exception) -> UsageError:
    line = getattr(error, "lineno", None)
    place = f" (line {line})" if line else ""
    return UsageError(f"{where}: the template cannot be read{place}: {_first_line(error)}.")


def _first_line(error: Exception) -> str:
    message = getattr(error, "message", None) or str(error)
    return str(message).split("\n", 1)[0].rstrip(".")


def _read_names(tree: Tree, where: str) -> tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
    """The columns that a template reads, in order, and which fields it takes of each by name."""
    from jinja2 import meta, nodes

    _refuse_files(tree, where)
    _refuse_private(tree, where)
    try:
        unknown = meta.find_undeclared_variables(tree) - set(GLOBALS)
    except Exception as error:  # an unknown filter or test
        raise _refused(where, error) from None
    variables = tuple(
        dict.fromkeys(name.name for name in tree.find_all(nodes.Name) if name.name in unknown)
    )
    fields: dict[str, dict[str, None]] = {}
    called = {id(call.node) for call in tree.find_all(nodes.Call)}  # methods are no fields
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        field, record = _field_of(node), getattr(node, "node", None)
        if field is None or id(node) in called or not isinstance(record, nodes.Name):
            continue
        if record.name in unknown:
            fields.setdefault(record.name, {})[field] = None
    return variables, MappingProxyType({name: tuple(found) for name, found in fields.items()})


def _field_of(node: Node) -> str | None:
    from jinja2 import nodes

    if isinstance(node, nodes.Getattr):
        return node.attr
    key = node.arg if isinstance(node, nodes.Getitem) else None
    return key.value if isinstance(key, nodes.Const) and isinstance(key.value, str) else None


def _refuse_files(tree: Tree, where: str) -> None:
    from jinja2 import nodes

    others = (nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include)
    if any(isinstance(node, others) for node in tree.find_all(nodes.Stmt)):
        raise UsageError(
            f"{where}: a template cannot take in another file; put its text here, for example with "
            "Path('prompt.txt').read_text()."
        )


def _refuse_private(tree: Tree, where: str) -> None:
    from jinja2 import nodes

    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        field = _field_of(node)
        if field is not None and field.startswith("_"):
            raise UsageError(
                f"{where}: a template cannot read {field!r}: names that begin with '_' are not "
                "for templates."
            )
