# SPDX-License-Identifier: Apache-2.0
"""Keep: what is remembered."""
