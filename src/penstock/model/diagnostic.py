# SPDX-License-Identifier: Apache-2.0
"""What should somebody know who was not asked?"""

from __future__ import annotations

import msgspec


class Diagnostic(msgspec.Struct, frozen=True, order=True):
    """Something that was decided for a user, or that does not work and stops nothing."""

    code: str  # of a closed list
    about: str  # the task, the group or the resource
    text: str  # one sentence, which says so, too
