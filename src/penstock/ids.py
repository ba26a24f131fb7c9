# SPDX-License-Identifier: Apache-2.0
"""Random ids and numbers; seeded in tests."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class IdSource(Protocol):
    """Random names and numbers; seeded in tests."""

    def new_id(self, prefix: str) -> str:
        """A name that no other process start will have."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemIds:
    """Ids from the operating system; never from host name or pid."""

    def __init__(self) -> None:
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 (jitter, not secrets)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{secrets.token_hex(8)}"

    def random(self) -> float:
        return self._random.random()


class SeededIds:
    """Reproducible ids, for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (reproducible on purpose)
        self._count = 0

    def new_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}-{self._count:04d}{self._random.getrandbits(32):08x}"

    def random(self) -> float:
        return self._random.random()
