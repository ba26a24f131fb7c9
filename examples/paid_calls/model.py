# SPDX-License-Identifier: Apache-2.0
"""A model on loopback that speaks OpenAI's API and counts what it is asked.

python model.py serves until it is interrupted, and says where.
"""

from __future__ import annotations

import contextlib
import threading

from penstock.testing import Lognormal, ProviderRules, SimulatedProvider, SimulatedRequest


class CountingModel:
    """Remembers the prompts of the calls, in the order of arrival."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.provider = SimulatedProvider(
            ProviderRules(concurrency=16, latency=Lognormal(0.2, sigma=0.3)), script=self._note
        )

    @property
    def url(self) -> str:
        return f"{self.provider.url}/v1"

    def _note(self, request: SimulatedRequest) -> None:
        self.prompts.append(request.json()["messages"][0]["content"])


if __name__ == "__main__":
    model = CountingModel()
    with model.provider, contextlib.suppress(KeyboardInterrupt):
        print(f"export MODEL_URL={model.url} OPENAI_API_KEY=sk-simulated", flush=True)
        threading.Event().wait()
    print(f"{len(model.prompts)} calls, {len(set(model.prompts))} different ones")
