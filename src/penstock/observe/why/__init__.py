# SPDX-License-Identifier: Apache-2.0
"""Why a job, a unit, a slice or a provider stands where it does."""
