# SPDX-License-Identifier: Apache-2.0
"""One of two producers with the same keys: enqueues them in batches that come by COPY.

argv: URL, "up" or "down", first key, batches, jobs of a batch. Begins when told; prints the
keys that it created.
"""

from __future__ import annotations

import json
import sys

from penstock.model.job import NewJob
from penstock.stores.postgres.open import open_postgres

WAIT_SECONDS = 100.0


def main() -> None:
    url, order = sys.argv[1:3]
    first, batches, jobs = map(int, sys.argv[3:6])
    numbers = [range(first + n * jobs, first + (n + 1) * jobs) for n in range(batches)]
    if order == "down":
        numbers.reverse()
    store = open_postgres(url)
    print("ready", flush=True)
    sys.stdin.readline()
    replies = [store.enqueue([_job(number) for number in batch]) for batch in numbers]
    created = [key for reply in replies for key in reply.result(WAIT_SECONDS).created]
    store.close()
    print(json.dumps(created), flush=True)


def _job(number: int) -> NewJob:
    return NewJob(key=f"k{number:06}", task="t", payload=f"{number}", group=f"g{number % 7}")


if __name__ == "__main__":
    main()
