# SPDX-License-Identifier: Apache-2.0
"""Power loss: record what a run writes and syncs, cut it anywhere, look at what is left."""
