# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference from the code: `make reference`.

A test compares the pages with what this would write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.reference import cli, configuration, errors, events, states

FOLDER = Path(__file__).resolve().parent.parent / "docs/reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli.page,
    "configuration.md": configuration.page,
    "states.md": states.page,
    "events.md": events.page,
    "errors.md": errors.page,
}


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
