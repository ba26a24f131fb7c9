# SPDX-License-Identifier: Apache-2.0
"""How fast is it, and is that fast enough?

python -m benchmarks SECTION… [--smoke] [--json FILE] [--save] [--only SCENARIO]
"""
