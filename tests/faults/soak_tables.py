# SPDX-License-Identifier: Apache-2.0
"""`make soak-tables`: kill -9 of the generation of a table, on both databases, with counts."""

from __future__ import annotations

import argparse
import sys
import time

from tests.faults.campaign_folder import Broken, campaign_folder
from tests.faults.table_campaign import PAID_COLUMNS, TableCampaign
from tests.postgres.cluster import Cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="on each database")
    parser.add_argument("--cells", type=int, default=3_000, help="that cost money")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    deaths = arguments.kills // 5
    with campaign_folder("tables", arguments.seed) as folder, Cluster(durable=True) as server:
        broken = False
        for name, url in {"sqlite": None, "postgres": server.create_database("tables")}.items():
            campaign = TableCampaign(
                folder / name, url, seed=arguments.seed, rows=arguments.cells // PAID_COLUMNS
            )
            outcome = campaign.run(arguments.kills - deaths, deaths)
            print(f"{name}: " + "\n  ".join(outcome.lines()), flush=True)
            broken = broken or bool(outcome.broken)
        if broken:
            raise Broken
    return 0


if __name__ == "__main__":
    sys.exit(main())
