# SPDX-License-Identifier: Apache-2.0
"""Penstock runs API-bound Python work crash-safely, at exactly the speed its providers allow."""

from penstock.app import Penstock
from penstock.definitions.context import Context
from penstock.definitions.request import Enqueued, JobRequest
from penstock.errors import Skip
from penstock.model.job import finished

__all__ = ["Context", "Enqueued", "JobRequest", "Penstock", "Skip", "finished"]
