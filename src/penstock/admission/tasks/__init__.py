# SPDX-License-Identifier: Apache-2.0
"""Decide which ready task runs next, and whether it may start."""
