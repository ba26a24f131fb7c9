# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts, watches, restarts and reports worker processes."""
