# SPDX-License-Identifier: Apache-2.0
"""Planning: calendars and cron, partitions, the dependency graph of datasets, build plans."""
