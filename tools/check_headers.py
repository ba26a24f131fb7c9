# SPDX-License-Identifier: Apache-2.0
"""Does every source file begin with its licence line?

A shebang may come before it. Run with `--fix` to add the line where it is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples", ".ci")
SINGLE_FILES = ("Makefile", "pyproject.toml")
LICENCE = "SPDX-License-Identifier: Apache-2.0"


def expected_line(path: Path) -> str | None:
    """Return the line the file must begin with; None means the file needs none."""
    if path.suffix == ".sql":
        return f"-- {LICENCE}"
    if path.suffix in {".py", ".sh"} or path.name == "Makefile" or path.parent.name == ".ci":
        return f"# {LICENCE}"
    return None


def source_files(root: Path) -> Iterator[Path]:
    """Yield the files that need a licence line, in a stable order."""
    yield from (root / name for name in SINGLE_FILES if (root / name).is_file())
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and expected_line(path):
                yield path


def has_header(text: str, line: str) -> bool:
    """Tell whether the text begins with the line, after a shebang if there is one."""
    lines = text.splitlines()[:2]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    return lines[:1] == [line]


def with_header(text: str, line: str) -> str:
    """Return the text with the line at its top, below a shebang if there is one."""
    if not text.startswith("#!"):
        return f"{line}\n{text}"
    shebang, _, rest = text.partition("\n")
    return f"{shebang}\n{line}\n{rest}"


def main(arguments: list[str] | None = None) -> int:
    """Report, or with `--fix` repair, the files without a licence line; 1 means some remain."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fix", action="store_true", help="add the line where it is missing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to look at")
    options = parser.parse_args(arguments)
    root: Path = options.root

    missing = 0
    for path in source_files(root):
        line = expected_line(path) or f"# {LICENCE}"
        text = path.read_text(encoding="utf-8")
        if has_header(text, line):
            continue
        name = path.relative_to(root)
        if options.fix:
            path.write_text(with_header(text, line), encoding="utf-8")
            print(f"{name}: added")
        else:
            missing += 1
            print(f"{name}: does not begin with '{line}'")
    if missing:
        print(f"{missing} without a licence line; `python tools/check_headers.py --fix` adds it.")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
