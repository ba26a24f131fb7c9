# SPDX-License-Identifier: Apache-2.0
"""Entry points of worker and task processes, and what the first worker does before any work."""
