# SPDX-License-Identifier: Apache-2.0
"""Preflights, then ticks: the two phases of a daemon."""
