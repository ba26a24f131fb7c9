# SPDX-License-Identifier: Apache-2.0
"""Decide what follows a failure."""
