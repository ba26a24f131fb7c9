# SPDX-License-Identifier: Apache-2.0
"""What do people want to know of a queue? Reads only."""
