# SPDX-License-Identifier: Apache-2.0
"""What users declare: tasks, datasets, schedules, preflights, partitions, providers."""
