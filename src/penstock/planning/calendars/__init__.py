# SPDX-License-Identifier: Apache-2.0
"""Calendars of datasets: in local time, at fixed intervals, from lists, of exchanges."""
