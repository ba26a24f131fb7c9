# SPDX-License-Identifier: Apache-2.0
"""The global options of one invocation of the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invocation:
    """The global options, as commands find them in `context.obj`."""

    debug: bool = False
    log_level: str = "info"
    log_format: str = "text"
