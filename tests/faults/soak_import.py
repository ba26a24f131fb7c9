# SPDX-License-Identifier: Apache-2.0
"""`make soak-import`: a line of 1 GiB is passed over within 300 MB of address space."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.big_line import ADDRESS_SPACE_BYTES, import_big_line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-import-") as folder:
        ended, kept = import_big_line(Path(folder), arguments.mebibytes)
    spent = time.monotonic() - began
    print(
        f"a line of {arguments.mebibytes} MiB within {ADDRESS_SPACE_BYTES:,} bytes, {spent:.0f} s: "
        f"exit code {ended.returncode}, {kept} of 2 neighbours kept, {ended.stdout.strip()}; "
        f"{ended.stderr.strip()}"
    )
    sound = ended.returncode == 1 and kept == 2 and "at most" in ended.stderr
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
