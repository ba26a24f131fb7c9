# SPDX-License-Identifier: Apache-2.0
"""How is a queries.sql read?"""

from __future__ import annotations

import re
from importlib.resources import files

_HEAD = re.compile(r"^-- ([a-z_0-9]+) --$", re.MULTILINE)


def read_queries(package: str) -> dict[str, str]:
    """The statements of a backend's queries.sql by name; their comments stay behind."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = _HEAD.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"a query of {package} has two definitions")
    return {name: _strip(body) for name, body in zip(names, bodies, strict=True)}


def _strip(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
