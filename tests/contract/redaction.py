# SPDX-License-Identifier: Apache-2.0
"""Does no secret enter a store with the text of an error, whoever writes it?"""

from __future__ import annotations

from penstock.model.job import AttemptError, ErrorCategory, JobState
from tests.contract.world import StoreWorld, ref

SECRET = "Bearer Zq7mXw2pLr9tKv4b"
SAFE = "Bearer [redacted]"


def _error(text: str) -> AttemptError:
    return AttemptError(ErrorCategory.OWN, "Refused", text, f"{text} in f")


def _texts(store_world: StoreWorld, key: str) -> list[str]:
    """Every text that the store has about a job, its history included."""
    errors = [store_world.view(key).last_error, *(x.error for x in store_world.history(key))]
    return [text for error in errors if error for text in (error.message, error.where or SAFE)]


def test_an_error_or_a_skip_is_kept_without_its_secret(store_world: StoreWorld) -> None:
    for key, state in (("a", JobState.ERROR), ("b", JobState.SKIPPED)):
        store_world.add(key)
        worker = store_world.new_worker()
        job = store_world.take_one(worker)
        store_world.ack(worker, job, state, error=_error(SECRET))

        texts = _texts(store_world, key)
        assert len(texts) == 4
        assert all(SAFE in text and SECRET not in text for text in texts)


def test_a_failure_that_is_tried_again_is_kept_without_its_secret(store_world: StoreWorld) -> None:
    store_world.add("a")
    worker = store_world.new_worker()
    failure = store_world.failure(store_world.take_one(worker), error=_error(SECRET))

    store_world.store.fail_and_retry(worker, [failure]).result()

    assert store_world.why("a") == SAFE
    assert all(SECRET not in text for text in _texts(store_world, "a"))


def test_the_cause_of_a_death_is_kept_without_its_secret(store_world: StoreWorld) -> None:
    store_world.add("a")
    for crash in range(3):
        worker = store_world.new_worker()
        job = store_world.take_one(worker, quarantine=crash > 0)
        store_world.reap(worker, [job], cause=f"killed by {SECRET}", max_crashes=2)

    assert store_world.state("a") is JobState.ERROR
    assert len(store_world.history("a")) == 3
    assert SAFE in store_world.why("a")
    assert all(SECRET not in text for text in _texts(store_world, "a"))


def test_the_reason_of_a_revocation_is_kept_without_its_secret(store_world: StoreWorld) -> None:
    store_world.add("a")
    job = store_world.take_one(store_world.new_worker())

    store_world.store.revoke(ref(job), f"an operator with {SECRET}").result()

    (attempt,) = store_world.history("a")
    assert attempt.error is not None
    assert attempt.error.message == f"an operator with {SAFE}"
