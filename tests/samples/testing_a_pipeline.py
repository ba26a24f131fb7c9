# SPDX-License-Identifier: Apache-2.0
"""How a user tests an app: in memory and in virtual time."""

import pytest

from penstock.errors import PenstockError
from penstock.testing import harness
from tests.samples.first_pipeline import app, fetch


def test_a_known_doi_has_a_title() -> None:
    with harness(app, seed=1) as t:
        t.enqueue(fetch.job(doi="10.1/x"), key="known")
        t.enqueue(fetch.job(doi="10.1/y"), key="unknown", delay=3600)
        t.drain()

        assert t.results["known"] == {"title": "On Computable Numbers"}
        assert t.states["unknown"] == "skipped"
        assert not t.errors


def test_a_bad_argument_is_refused_when_it_is_enqueued() -> None:
    with pytest.raises(PenstockError, match="argument 'doi'"):
        fetch.job(doi=5)  # type: ignore[arg-type]
