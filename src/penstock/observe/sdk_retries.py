# SPDX-License-Identifier: Apache-2.0
"""Does a client of an SDK send again behind the back of request admission?

Read from the source of the tasks: a call that is given an `http_client` and not `max_retries=0`
hides attempts, which then come without a permit of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.model.doctor_finding import Finding, problem, well

PLACES_SHOWN = 3


def provider_finding(providers: Iterable[str], files: Iterable[str]) -> Finding | None:
    """What is to be said about the providers of an app; None if it has none."""
    names = ", ".join(map(repr, sorted(providers)))
    if not names:
        return None
    places = [place for file in sorted(set(files)) for place in hidden_retries(Path(file))]
    if places:
        more = f" and {len(places) - PLACES_SHOWN} more" if len(places) > PLACES_SHOWN else ""
        return problem(
            "providers",
            f"A client of an SDK would send again by itself, without a permit "
            f"({', '.join(places[:PLACES_SHOWN])}{more}); give it max_retries=0.",
        )
    return well("providers", f"{names}; a client of an SDK on top of them needs max_retries=0")


def hidden_retries(file: Path) -> Iterator[str]:
    """The places of such calls, as far as the source can be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            said = {keyword.arg: keyword.value for keyword in node.keywords}
            if "http_client" in said and None not in said and not _is_zero(said.get("max_retries")):
                yield f"{file.name}, line {node.lineno}"


def _is_zero(value: ast.expr | None) -> bool:
    # What is no literal may be 0: nobody is told off for what cannot be read.
    return value is not None and (not isinstance(value, ast.Constant) or value.value == 0)
