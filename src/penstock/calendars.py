# SPDX-License-Identifier: Apache-2.0
"""At which moments does a dataset have slices, and which slices of others does one need?"""

from penstock.model.calendar import Calendar
from penstock.model.needs import exact, latest, lookback, window
from penstock.planning.calendars.cron import Cron
from penstock.planning.calendars.custom import Custom
from penstock.planning.calendars.daily import Daily
from penstock.planning.calendars.every import Every
from penstock.planning.calendars.exchange import Exchange
from penstock.planning.calendars.hourly import Hourly
from penstock.planning.calendars.monthly import Monthly
from penstock.planning.calendars.timestamps import generate_timestamps
from penstock.planning.calendars.weekly import Weekly

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
