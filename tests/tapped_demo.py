# SPDX-License-Identifier: Apache-2.0
"""`penstock`, with a tap on the simulated provider: what came to it is written to $DEMO_TAP.

A second witness of the demo: it counts bodies, and knows nothing of journals and fingerprints.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.testing.simulated_provider.core import OpenCall, ProviderCore

accepted: Counter[str] = Counter()
served: Counter[str] = Counter()
refused = 0
_visit, _finish = ProviderCore.begin, ProviderCore.finish


def visit(core: ProviderCore, *arguments: Any) -> OpenCall:
    global refused
    found = _visit(core, *arguments)
    if found.call.refused:
        refused += 1
    else:
        accepted[found.request.body.decode()] += 1
    return found


def finish(core: ProviderCore, found: OpenCall, now: float, *, whole: bool) -> None:
    if whole and found.call.ended_seconds is None and not found.call.refused:
        served[found.request.body.decode()] += 1
    _finish(core, found, now, whole=whole)


if __name__ == "__main__":
    from penstock_command import run

    ProviderCore.begin = visit  # type: ignore[method-assign,assignment]
    ProviderCore.finish = finish  # type: ignore[method-assign,assignment]
    try:
        run()
    finally:
        seen = {"accepted": accepted, "served": served, "refused": refused}
        Path(os.environ["DEMO_TAP"]).write_text(json.dumps(seen))
