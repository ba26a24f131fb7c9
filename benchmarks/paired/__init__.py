# SPDX-License-Identifier: Apache-2.0
"""Comparison of this checkout with an older commit, interleaved in one run.

The same workloads run in both checkouts, each in its own environment. They use what Penstock
promises to its users (the public list, the command line), so that they run unchanged on a commit
that knows nothing of them. `README.md` of the benchmarks says how to read the figures.
"""

#: What can be compared.
SECTIONS = ("queue", "postgres", "scheduling", "journal", "planning", "import")
