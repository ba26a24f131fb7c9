# SPDX-License-Identifier: Apache-2.0
"""What must not break us: kills, failpoints, oracles."""
