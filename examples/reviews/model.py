# SPDX-License-Identifier: Apache-2.0
"""A model on loopback that speaks OpenAI's API: python model.py serves until it is interrupted."""

from __future__ import annotations

import contextlib
import threading

from penstock.testing import Lognormal, ProviderRules, SimulatedProvider


def simulated_model() -> SimulatedProvider:
    """Serves 16 calls at once, and refuses more with 429."""
    return SimulatedProvider(ProviderRules(concurrency=16, latency=Lognormal(0.1, sigma=0.3)))


if __name__ == "__main__":
    with simulated_model() as model, contextlib.suppress(KeyboardInterrupt):
        print(f"export MODEL_URL={model.url}/v1", flush=True)
        threading.Event().wait()
    print(f"{model.counts.served} calls served")
