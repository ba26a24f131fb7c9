# SPDX-License-Identifier: Apache-2.0
"""Calendars of datasets (daily, cron, exchange …) and the rules for upstream slices."""

from penstock.model.dataset import Calendar, exact, latest, lookback, window
from penstock.planning.calendars.fixed import Custom, Every, Exchange
from penstock.planning.calendars.local import Cron, Daily, Hourly, Monthly, Weekly
from penstock.planning.calendars.timestamps import generate_timestamps

__all__ = [
    "Calendar",
    "Cron",
    "Custom",
    "Daily",
    "Every",
    "Exchange",
    "Hourly",
    "Monthly",
    "Weekly",
    "exact",
    "generate_timestamps",
    "latest",
    "lookback",
    "window",
]
