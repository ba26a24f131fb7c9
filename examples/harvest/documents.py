# SPDX-License-Identifier: Apache-2.0
"""Which documents are there to fetch? One job a line, from one number to another.

python documents.py 0 2000 > documents.jsonl
"""

from __future__ import annotations

import json
import sys

for number in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps({"key": f"document:{number}", "number": number}))
