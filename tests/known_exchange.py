# SPDX-License-Identifier: Apache-2.0
"""Imported once, for all clones that build datasets by the sessions of New York."""

import pyarrow.parquet  # noqa: F401

from penstock.calendars import Exchange

assert Exchange("XNYS").daily  # from now on they are known, also those of later years
