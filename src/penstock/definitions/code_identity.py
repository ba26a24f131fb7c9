# SPDX-License-Identifier: Apache-2.0
"""Identity of a function's code, the same at every start and under every Python.

Answers that were bought for a column depend on it, so it says what the code is and not how it was
compiled. Comments, blank lines, its place, name, docstring, decorators and types do not count; its
defaults, what it encloses, and the functions of its module that it calls do. Code without a source
(made by a program, typed at a prompt) is known by what it was compiled to.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import linecache
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType

from penstock.definitions.dataset import constant_text

_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_UNCOUNTED = (
    "annotation",
    "ctx",
    "decorator_list",
    "kind",
    "returns",
    "type_comment",
    "type_params",
)
_CONSTANTS = (bool, int, float, complex, str, bytes, frozenset)


def identity_of_code(function: Callable[..., object]) -> str:
    """A digest of what a function does, as far as it and its module tell."""
    texts = sorted(set(_texts(function, set())))
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _texts(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, functools.partial):
        yield from _texts(value.func, seen)
        yield from _texts((value.args, *value.keywords.values()), seen)
    elif callable(value):
        function = _function_of(value)
        if function is None:
            yield f"{type(value).__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
        elif id(function.__code__) not in seen:
            seen.add(id(function.__code__))
            yield _source_text(function.__code__) or constant_text(function.__code__)
            yield from _texts((_enclosed(function), _state(value)), seen)
            for called in _called(function):
                yield from _texts(called, seen)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _texts(one, seen)
    elif value is None or isinstance(value, _CONSTANTS):
        yield constant_text(value)


def _function_of(value: Callable[..., object]) -> FunctionType | None:
    """A function, that of a method, or that of an object that can be called."""
    found = inspect.unwrap(value)
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType) and not isinstance(found, type):
        found = type(found).__call__
    return found if isinstance(found, FunctionType) else None


def _state(value: Callable[..., object]) -> tuple[object, ...]:
    """What an object holds that can be called, or whose method it is."""
    owner = getattr(value, "__self__", value)
    if isinstance(owner, FunctionType | type) or hasattr(owner, "__wrapped__"):
        return ()
    held = getattr(owner, "__dict__", {})
    return tuple(held[name] for name in sorted(held) if not name.startswith("__"))


def _enclosed(function: FunctionType) -> tuple[object, ...]:
    named = sorted((function.__kwdefaults__ or {}).items())
    defaults = (*(function.__defaults__ or ()), *(value for _, value in named))
    return (*defaults, *map(_contents, function.__closure__ or ()))


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet, as the name of a function that is being decorated
        return None


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of its own module that it names."""
    for name in sorted(_global_names(function.__code__)):
        found = function.__globals__.get(name)
        if isinstance(found, FunctionType) and found.__module__ == function.__module__:
            yield found


def _global_names(code: CodeType) -> set[str]:
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _source_text(code: CodeType) -> str | None:
    """Its source in one canonical form; None: there is none, or it is not clear which one."""
    lines = "".join(linecache.getlines(code.co_filename))
    nodes = [node for node in _functions_in(lines) if _first_line(node) == code.co_firstlineno]
    found = {_canonical(node) for node in nodes if _is_source(node, code)}
    return found.pop() if len(found) == 1 else None


@functools.lru_cache(maxsize=16)
def _functions_in(text: str) -> tuple[_Node, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, _Node))


def _first_line(node: _Node) -> int:
    decorators = () if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(one.lineno for one in decorators)])


def _is_source(node: _Node, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and _encloses(node, code)
    return node.name == code.co_name


def _encloses(node: ast.Lambda, code: CodeType) -> bool:
    """Whether all of the code stands in the body of this lambda, and begins where that begins."""
    body = node.body
    first, last = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None and end_column
    ]
    begins = {begin for begin, _ in places}
    return first in begins and all(first <= begin and end <= last for begin, end in places)


def _canonical(node: ast.AST, *, is_outermost: bool = True) -> str:
    """A tree as text, without what does not count. Python's own form of it changes now and then."""
    parts = []
    for name, value in ast.iter_fields(node):
        if value is None or value == [] or name in _UNCOUNTED or (is_outermost and name == "name"):
            continue
        if name == "body" and isinstance(value, list) and _has_docstring(node):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):  # some Pythons put empty texts between its parts
            value = [one for one in value if getattr(one, "value", None) != ""]
        parts.append(f"{name}={_canonical_value(value)}")
    return f"{type(node).__name__}({', '.join(parts)})"


def _canonical_value(value: object) -> str:
    if isinstance(value, ast.AST):
        return _canonical(value, is_outermost=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_canonical_value, value))}]"
    return f"{type(value).__name__} {value!a}"


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return ast.get_docstring(node, clean=False) is not None
