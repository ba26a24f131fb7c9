# SPDX-License-Identifier: Apache-2.0
"""What is asked before a task is selected, and what is a selection?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.admission.tasks.decisions import TaskAdmissionDenied
from penstock.admission.tasks.queue_view import QueueView
from penstock.model.task import SchedulableTask

#: May this task start now? True, or the denial; a bare False says nothing of why, so that the
#: task is asked for again in every selection.
IsEligible = Callable[[SchedulableTask, QueueView], bool | TaskAdmissionDenied]


class QueueSelection(msgspec.Struct, frozen=True, gc=False):
    """A task that may go; nothing has changed yet."""

    item: SchedulableTask
    queue_view: QueueView
    sequence_version: int  # of the queue: after any change of it this is not to be committed
