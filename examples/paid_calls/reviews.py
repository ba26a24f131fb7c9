# SPDX-License-Identifier: Apache-2.0
"""Which reviews are there to judge? One job a line.

python reviews.py 60 > reviews.jsonl
"""

from __future__ import annotations

import json
import sys

WRITERS = ("The pump hums.", "It leaks at the gate!", "Works since March.", "Too loud at night?")

for number in range(1, int(sys.argv[1]) + 1):
    text = f"Review {number}: {WRITERS[number % len(WRITERS)]}"
    print(json.dumps({"key": f"review:{number}", "review": text}))
