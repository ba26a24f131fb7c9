# SPDX-License-Identifier: Apache-2.0
"""Settings: what can be set, the loading of it, and where each value came from."""
