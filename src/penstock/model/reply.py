# SPDX-License-Identifier: Apache-2.0
"""What does a user's classifier see of a reply?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from penstock.model.request import RequestReleaseOutcome


class ReplyFacts(msgspec.Struct, frozen=True):
    """What a user's classifier sees of a reply."""

    status_code: int
    headers: Mapping[str, str]  # names in lower case
    body_start: bytes  # decoded; all of a short body, the first event of a stream


#: A user's opinion about a reply: what it was really ("success", "rate_limited",
#: "provider_failure", …); None leaves it to its status.
ReplyClassifier = Callable[[ReplyFacts], str | RequestReleaseOutcome | None]
