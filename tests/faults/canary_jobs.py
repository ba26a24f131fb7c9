# SPDX-License-Identifier: Apache-2.0
"""Which jobs has the app of the canaries, and where is it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.canaries import prose

PIPELINE = Path(__file__).with_name("canary_pipeline.py")

#: Those that kill their worker or hold others up, with their arguments.
DEADLY: dict[str, dict[str, Any]] = {
    "good": {"text": prose("payload")},
    "dies": {},
    "held": {},
    "over_budget": {},
}
#: All others.
QUOTING: dict[str, dict[str, Any]] = {
    "shows_answer": {},
    "shows_stream": {},
    "broken_stream": {},
    "in_thread": {},
    "tool_call": {},
    "quotes_payload": {"text": prose("payload")},
    "in_process": {"text": prose("payload")},
    "skips": {"text": prose("skipped")},
    "result_is_no_json": {"text": prose("result")},
    "quotes_secrets": {},
    "refused": {},
    "times_out": {"text": prose("payload")},
    "sdk_openai": {},
    "sdk_anthropic": {},
}
