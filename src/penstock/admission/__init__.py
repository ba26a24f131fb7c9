# SPDX-License-Identifier: Apache-2.0
"""Decide what may start now. Pure and synchronous; belongs to one loop."""
