# SPDX-License-Identifier: Apache-2.0
"""Finds and imports the app that a command means: a file, or `module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from penstock.config.trust import is_app_of, reason_for_distrust, refuse_untrusted
from penstock.errors import AppNotFound, UsageError

DEFAULT_FILE = "pipeline.py"

#: Where code lies that is not the user's.
_FOREIGN = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))

_INSTALLED = ("site-packages", "dist-packages")
#: Names of Python's own modules that folders have for reasons of their own.
_RARELY_MEANT = frozenset(("test",))

T = TypeVar("T")


_imports = 0  # of apps that are under way


@contextmanager
def _importing() -> Iterator[None]:
    global _imports
    _imports += 1
    try:
        yield
    finally:
        _imports -= 1


def refuse_import(call: str) -> None:
    """Raise if an app is being imported by one of our processes: it would do the same in each."""
    if _imports:
        raise UsageError(
            f"The app calls {call} while it is imported. Put the call below "
            '`if __name__ == "__main__":`, so that it is made only where the file is run.'
        )


def find_app(name: str | None, folder: Path, kind: type[T]) -> T:
    """Import the app named by a file or `module:attribute`; without a name, pipeline.py."""
    if name is None:
        if not (folder / DEFAULT_FILE).exists():
            raise AppNotFound(
                f"No app is named, and {str(folder)!r} has no {DEFAULT_FILE}. Name a file or "
                "module:attribute with --app, PENSTOCK_APP, or app = … in penstock.toml."
            )
        refuse_untrusted(folder, (DEFAULT_FILE,))
        name = DEFAULT_FILE
    if is_app_of(folder, name) or reason_for_distrust(folder) is None:
        _make_importable(folder)
    if name.endswith(".py"):
        return _only(_import_file(folder / name), name, kind)
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".")
        raise AppNotFound(
            f"The app {name!r} is a file with an attribute; write {module_name!r}, or "
            f"{f'{dotted}:{attribute}'!r} where the file defines several."
        )
    module = _import(module_name, name)
    if not attribute:
        return _only(module, name, kind)
    found = getattr(module, attribute, None)
    if not isinstance(found, kind):
        what = "does not exist" if found is None else f"is a {type(found).__name__}"
        raise AppNotFound(
            f"The app {name!r}: {attribute!r} {what}; it must be a {kind.__name__} object."
        )
    return found


def _make_importable(folder: Path) -> None:
    """Let the modules of a folder be imported: before installed ones, after Python's own.

    A file called `queue.py` or `secrets.py` there must not break libraries that import Python's.
    """
    if str(folder) not in sys.path:
        places = enumerate(sys.path)
        before = (at for at, place in places if Path(place).name in _INSTALLED)
        sys.path.insert(next(before, len(sys.path)), str(folder))


def hidden_modules(folder: Path) -> list[str]:
    """Files and packages of a folder that modules of Python hide, since they have their names."""
    found = (*folder.glob("*.py"), *(init.parent for init in folder.glob("*/__init__.py")))
    return sorted(one.name for one in found if one.stem in sys.stdlib_module_names - _RARELY_MEANT)


def _import_file(path: Path) -> ModuleType:
    if not path.exists():
        raise AppNotFound(
            f"The app file {str(path)!r} does not exist. Name another with --app."
        ) from FileNotFoundError(str(path))
    module_name = path.stem
    known = sys.modules.get(module_name)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    if not module_name.isidentifier() or module_name in sys.modules:
        module_name = f"penstock_app_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    if spec is None or spec.loader is None:
        raise AppNotFound(f"The app file {str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    _make_importable(path.resolve().parent)
    sys.modules[module_name] = module
    try:
        with _importing():
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(module_name, None)
        raise _broken(str(path), error) from error
    return module


def _import(module_name: str, name: str) -> ModuleType:
    try:
        with _importing():
            return importlib.import_module(module_name)
    except BaseException as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> BaseException:
    from penstock.errors import PenstockError

    if isinstance(error, PenstockError | KeyboardInterrupt):
        return error
    if isinstance(error, SyntaxError):
        file = error.filename or name
        where = "" if Path(file).name == Path(name).name else f" of {Path(file).name!r}"
        return AppNotFound(
            f"The app {name!r} has a syntax error in line {error.lineno}{where}: {error.msg}. "
            "Correct it there."
        )
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{name.partition(':')[0]}.".startswith(f"{missing}."):
        return AppNotFound(
            f"The app {name!r} is in no module that is there: {missing!r} is missing. Name a file "
            "such as pipeline.py, or module:attribute, with --app."
        )
    text = str(error) or "no message"
    return AppNotFound(
        f"The app {name!r} cannot be imported: {type(error).__name__}: {text}{_place(error)}. "
        f"Fix it there; --debug shows the traceback."
    )


def _place(error: BaseException) -> str:
    """File and line of the user's own code that the error came through last."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_FOREIGN, "<"))
        and "site-packages" not in Path(frame.filename).parts
    ]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _only(module: ModuleType, name: str, kind: type[T]) -> T:
    found = {
        id(value): (attribute, value)
        for attribute, value in vars(module).items()
        if isinstance(value, kind)
    }
    if not found:
        raise AppNotFound(
            f"The app {name!r} defines no {kind.__name__} object. "
            f"Write `app = {kind.__name__}('name')` in it."
        )
    if len(found) > 1:
        names = ", ".join(sorted(attribute for attribute, _ in found.values()))
        raise AppNotFound(
            f"The app {name!r} defines several {kind.__name__} objects: {names}. Name one as "
            "module:attribute."
        )
    return next(iter(found.values()))[1]


def import_path_of(app: object, name: str) -> str:
    """How another process can import this very app: `module:attribute`, or a file."""
    for module_name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is not app:
                continue
            if module_name != "__main__":
                return f"{module_name}:{attribute}"
            spec = getattr(module, "__spec__", None)
            if spec is not None:  # python -m package.module
                return f"{spec.name}:{attribute}"
            file = getattr(module, "__file__", None)
            if file is not None:
                return str(Path(file).resolve())
    raise AppNotFound(
        f"The app {name!r} has tasks with executor='process', but no file that another process "
        f"could import it from; define it at the top level of a module."
    )
