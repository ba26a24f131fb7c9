# SPDX-License-Identifier: Apache-2.0
"""Who answers requests in a test?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.requests.clients.provider_clients import MakeWire


class Simulated(Protocol):
    """Answers requests in place of a provider."""

    def transport(self) -> Any:  # noqa: ANN401 (of httpx2 or httpx)
        ...


NOBODY: Mapping[str, Simulated] = {}


def wire(simulated: Simulated) -> MakeWire:
    """What stands in the place of the network."""
    return lambda _: simulated.transport()
