# SPDX-License-Identifier: Apache-2.0
"""How many at once for a key? Pure cores: they count and decide, and never wait."""
