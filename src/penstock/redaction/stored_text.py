# SPDX-License-Identifier: Apache-2.0
"""What does a text look like that every store can keep, and anybody may read?"""

from __future__ import annotations

from penstock.redaction.secrets import redacted

ERROR_BYTES_MAX = 16 * 1024
READ_MAX = 64 * 1024  # characters that are looked at
MARGIN = 4 * 1024  # characters at the end of what is looked at that may be half a secret

_CUT = " …"


def kept_text(text: str) -> str:
    """The text without secrets, short, and without NUL and lone surrogates.

    Every text about a job that is not the user's own data goes through here on its way into a
    store: see `AttemptError`. Secrets go before the text is cut, so that none is cut in half.
    """
    if len(text) > READ_MAX:
        text = text[:READ_MAX]
        text = text[: max(READ_MAX - MARGIN, text.rfind(" "))] + _CUT
    text = redacted(text).replace("\x00", "\\x00")
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > ERROR_BYTES_MAX:
        data = data[: ERROR_BYTES_MAX - len(_CUT.encode())]
        return data.decode("utf-8", "ignore") + _CUT
    return data.decode()
