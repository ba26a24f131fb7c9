# SPDX-License-Identifier: Apache-2.0
"""What must be said before any test is imported?"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("penstock.testing.store_contract")
