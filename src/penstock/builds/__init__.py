# SPDX-License-Identifier: Apache-2.0
"""Datasets brought up to date: locks, plans, slices."""
