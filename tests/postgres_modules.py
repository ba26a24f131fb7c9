# SPDX-License-Identifier: Apache-2.0
"""Modules that stand in for those of the PostgreSQL store, where no server is needed."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest


def put_module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: object) -> None:
    """Stand in for a module of the PostgreSQL store."""
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, f"penstock.stores.postgres.{name}", module)


def without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open", "doctor"):
        monkeypatch.setitem(sys.modules, f"penstock.stores.postgres.{name}", None)
