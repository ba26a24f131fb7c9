# SPDX-License-Identifier: Apache-2.0
"""What did one check of the doctor find?"""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One line of `penstock doctor`."""

    check: str  # its short name
    ok: bool
    text: str  # what is well, or one sentence with what is wrong and what to do


def well(check: str, text: str) -> Finding:
    return Finding(check, ok=True, text=text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, ok=False, text=text)
