# SPDX-License-Identifier: Apache-2.0
"""Wire: what can be set, and where it came from."""
