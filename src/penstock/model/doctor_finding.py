# SPDX-License-Identifier: Apache-2.0
"""Findings of `penstock doctor`."""

from __future__ import annotations

import msgspec


class Diagnostic(msgspec.Struct, frozen=True, order=True):
    """Something that was decided for a user, or that does not work and stops nothing."""

    code: str  # of a closed list
    about: str  # the task, the group or the resource
    text: str  # one sentence, which says so, too


class Finding(msgspec.Struct, frozen=True):
    """One line of `penstock doctor`."""

    check: str  # its short name
    ok: bool
    text: str  # what is well, or one sentence with what is wrong and what to do


def well(check: str, text: str) -> Finding:
    return Finding(check, ok=True, text=text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, ok=False, text=text)
