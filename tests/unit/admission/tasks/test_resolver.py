# SPDX-License-Identifier: Apache-2.0
"""Does every definition get one group and one request, whatever the order they come in?"""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.admission.tasks import resolver as module
from penstock.admission.tasks.resolver import SchedulingNote, TaskSchedulingResolver
from penstock.errors import (
    InternalError,
    SchedulingMetadataCode,
    SchedulingMetadataError,
    UsageError,
)
from penstock.model.provider import Endpoint, RequestResourceKey, SeveralResources
from penstock.model.task import SchedulingDefinition, SchedulingMetadata, TaskGroupSpec

GPT = RequestResourceKey("openai", "gpt-5", "chat")
EMBED = RequestResourceKey("openai", "embed", "embedding")


class Column:
    """Says itself how it shares, and counts how often it is asked."""

    def __init__(self, answer: SchedulingMetadata | SchedulingMetadataError) -> None:
        self.answer = answer
        self.asked = 0

    def get_scheduling_metadata(self) -> SchedulingMetadata:
        self.asked += 1
        if isinstance(self.answer, SchedulingMetadataError):
            raise self.answer
        return self.answer


def define(
    name: str,
    metadata: SchedulingMetadata | Column | None = None,
    endpoints: tuple[Endpoint, ...] = (),
    limit_keys: tuple[str, ...] = (),
    slot: str | None = "async",
) -> SchedulingDefinition:
    return SchedulingDefinition(
        name=name, slot=slot, metadata=metadata, limit_keys=limit_keys, endpoints=endpoints
    )


def broken(fallback: SchedulingMetadata | None = None, message: str = "No model.") -> Column:
    error = SchedulingMetadataError(SchedulingMetadataCode.SOURCE_FAILED, message, fallback)
    return Column(error)


def test_without_metadata_a_task_is_local_and_weighs_one() -> None:
    resolved = TaskSchedulingResolver([define("a")]).resolve("a")

    assert resolved.group == TaskGroupSpec("local:default", 1)
    assert resolved.request_resource_key is None


def test_slots_and_keyed_limits_are_resources() -> None:
    resolver = TaskSchedulingResolver([define("a", limit_keys=("resolver:unpaywall",))])

    assert resolver.resolve("a").resource_request.amounts == {
        "submission": 1,
        "async": 1,
        "resolver:unpaywall": 1,
    }


def test_keys_of_the_arguments_join_those_of_the_definition() -> None:
    resolver = TaskSchedulingResolver([define("a", limit_keys=("kind:page",))])

    resolved = resolver.resolve("a", ["host:example.org"])

    assert resolved.resource_request.amounts == {
        "submission": 1,
        "async": 1,
        "kind:page": 1,
        "host:example.org": 1,
    }
    assert resolver.resolve("a", ["host:example.org"]) is resolved


def test_a_definition_without_a_slot_asks_for_a_submission_only() -> None:
    resolver = TaskSchedulingResolver([define("a", slot=None)])

    assert resolver.resolve("a").resource_request.amounts == {"submission": 1}


def test_metadata_is_asked_for_once() -> None:
    column = Column(SchedulingMetadata.local("parse", weight=3))

    resolver = TaskSchedulingResolver([define("a", column)])
    answers = {id(resolver.resolve("a")) for _ in range(3)}

    assert (column.asked, len(answers)) == (1, 1)
    assert resolver.resolve("a").group == TaskGroupSpec("local:parse", 3)


def test_a_model_lets_others_go_first_beyond_its_cap() -> None:
    metadata = SchedulingMetadata.model("openai", "gpt-5", "chat", weight=8)

    resolved = TaskSchedulingResolver([define("a", metadata)]).resolve("a")

    assert resolved.group == TaskGroupSpec("model:openai:gpt-5:chat", 8, 8)


def test_one_endpoint_is_the_group_and_the_gate_of_its_task() -> None:
    resolved = TaskSchedulingResolver([define("a", endpoints=(Endpoint(GPT, cap=8),))]).resolve("a")

    assert resolved.group == TaskGroupSpec("model:openai:gpt-5:chat", 8, 8)
    assert resolved.request_resource_key == GPT


def test_aliases_of_one_endpoint_are_one_resource_with_the_least_cap_in_any_order() -> None:
    definitions = [
        define("a", endpoints=(Endpoint(GPT, "fast", 8),)),
        define("b", endpoints=(Endpoint(GPT, "slow", 4), Endpoint(GPT, "fast", 8))),
        define("c", SchedulingMetadata.model("openai", "gpt-5", "embedding", weight=6)),
    ]

    for order in permutations(definitions):
        resolver = TaskSchedulingResolver(order)

        assert resolver.resolve("a").group == TaskGroupSpec("model:openai:gpt-5:chat", 4, 4)
        a, b = resolver.resolve("a"), resolver.resolve("b")
        assert b.group == a.group
        assert b.request_resource_key == a.request_resource_key
        assert (a.part, b.part) == ("a", "b")  # they take turns
        assert resolver.resolve("c").group.weight == 4
        (note,) = resolver.diagnostics
        assert note.code == SchedulingNote.WEIGHTS_MERGED
        assert note.about == "model:openai:gpt-5"
        assert note.text == (
            "The weight of 'model:openai:gpt-5' is given as 6 by 'c', 8 by 'fast', 4 by 'slow'; "
            "the smallest is used: 4."
        )


def test_one_alias_that_says_two_caps_has_the_least_in_any_order() -> None:
    for caps in permutations([8, 4]):
        endpoints = tuple(Endpoint(GPT, "fast", cap) for cap in caps)

        resolver = TaskSchedulingResolver([define("a", endpoints=endpoints)])

        assert resolver.resolve("a").group.weight == 4


def test_equal_caps_need_no_word() -> None:
    both = (Endpoint(GPT, "fast", 8), Endpoint(GPT, "slow", 8))

    assert TaskSchedulingResolver([define("a", endpoints=both)]).diagnostics == ()


def test_one_identity_has_one_weight_the_least() -> None:
    definitions = [
        define("a", SchedulingMetadata.local("parse", weight=3)),
        define("b", SchedulingMetadata.local("parse", weight=2)),
        define("c", SchedulingMetadata.local("other", weight=9)),
    ]

    for order in permutations(definitions):
        resolver = TaskSchedulingResolver(order)

        assert resolver.weights == {"a": 2, "b": 2, "c": 9}
        assert [note.about for note in resolver.diagnostics] == ["local:parse"]


def test_the_default_group_keeps_its_weight() -> None:
    resolver = TaskSchedulingResolver(
        [define("plain"), define("loud", SchedulingMetadata.local("default", weight=5))]
    )

    assert resolver.resolve("loud").group.weight == 1
    assert resolver.weights == {}


def test_many_contributors_are_counted_not_named() -> None:
    definitions = [
        define(f"t{n:02}", SchedulingMetadata.local("parse", weight=n + 1)) for n in range(20)
    ]

    (note,) = TaskSchedulingResolver(definitions).diagnostics

    assert note.text.endswith("8 by 't07' and 12 more; the smallest is used: 1.")


def test_an_endpoint_without_a_cap_weighs_one_and_is_told() -> None:
    resolver = TaskSchedulingResolver([define("a", endpoints=(Endpoint(GPT),))])

    assert resolver.resolve("a").group.weight == 1
    assert [(note.code, note.about) for note in resolver.diagnostics] == [
        (SchedulingNote.NO_CAP, "a")
    ]


def test_a_task_of_several_endpoints_is_a_model_of_its_own_the_same_in_any_order() -> None:
    endpoints = (Endpoint(GPT, "chat", 8), Endpoint(EMBED, "vectors", 3))

    for order in permutations(endpoints):
        resolver = TaskSchedulingResolver([define("a", endpoints=order)])

        resolved = resolver.resolve("a")
        assert resolved.group == TaskGroupSpec(
            "custom_model:endpoints:openai/embed/embedding+openai/gpt-5/chat:1", 3
        )
        assert resolved.request_resource_key == SeveralResources((EMBED, GPT))
        assert [note.code for note in resolver.diagnostics] == [SchedulingNote.SEVERAL_ENDPOINTS]


def test_endpoints_whose_names_are_too_long_together_have_a_short_name() -> None:
    endpoints = tuple(
        Endpoint(RequestResourceKey(letter * 200, "m", "chat"), cap=1) for letter in "ab"
    )

    key = TaskSchedulingResolver([define("a", endpoints=endpoints)]).resolve("a").group.key

    assert len(key) < 100


def test_what_the_author_says_goes_before_the_endpoints() -> None:
    mine = SchedulingMetadata.custom_model("acme", "mix", "1", weight=2)

    resolved = TaskSchedulingResolver([define("a", mine, (Endpoint(GPT, cap=8),))]).resolve("a")

    assert resolved.group == TaskGroupSpec("custom_model:acme:mix:1", 2)
    assert resolved.request_resource_key == GPT


def test_a_fallback_is_used_and_told() -> None:
    resolver = TaskSchedulingResolver([define("a", broken(SchedulingMetadata.local("spare", 2)))])

    assert resolver.resolve("a").group == TaskGroupSpec("local:spare", 2)
    (note,) = resolver.diagnostics
    assert (note.code, note.about) == (SchedulingNote.FALLBACK, "a")
    assert note.text == "'a' is scheduled as 'local:spare' instead (source_failed): No model."


def test_a_fallback_keeps_what_its_author_says_besides() -> None:
    error = SchedulingMetadataError(
        SchedulingMetadataCode.BAD_WEIGHT,
        "The cap is not known yet.",
        SchedulingMetadata.local("spare"),
        {"gpu-0": "its cap is asked for at midnight"},
    )

    notes = TaskSchedulingResolver([define("a", Column(error))]).diagnostics

    assert [(note.code, note.about, note.text) for note in notes] == [
        ("bad_weight", "gpu-0", "its cap is asked for at midnight"),
        (
            "fallback",
            "a",
            "'a' is scheduled as 'local:spare' instead (bad_weight): The cap is not known yet.",
        ),
    ]


def test_whatever_has_no_fallback_is_refused_in_one_sentence_for_all() -> None:
    definitions = [
        define("ok", broken(SchedulingMetadata.local("spare"))),
        define("b", broken(message="No model.")),
        define("a", endpoints=(Endpoint(GPT, cap=0),)),
    ]

    with pytest.raises(SchedulingMetadataError) as caught:
        TaskSchedulingResolver(definitions)

    assert str(caught.value) == (
        "Nothing is scheduled, since 2 definitions cannot be: 'a': The weight of ('model', "
        "'openai', 'gpt-5', 'chat') is a whole number from 1 to 1,000,000, got 0; 'b': No model."
    )
    assert set(caught.value.diagnostics) == {"a", "b"}
    assert caught.value.code is SchedulingMetadataCode.BAD_WEIGHT
    assert caught.value.fallback is None


def test_a_fallback_that_cannot_be_used_is_no_fallback() -> None:
    class Odd:
        kind = "gpu"
        identity = ("gpu", "0")
        weight = 1

    error = SchedulingMetadataError(SchedulingMetadataCode.SOURCE_FAILED, "No model.", Odd())

    with pytest.raises(SchedulingMetadataError, match="'a': The kind of scheduling metadata is"):
        TaskSchedulingResolver([define("a", Column(error))])


def test_two_definitions_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="Two definitions are named 'a'"):
        TaskSchedulingResolver([define("a"), define("a")])


def test_a_name_that_was_not_defined_is_our_bug() -> None:
    resolver = TaskSchedulingResolver([define("a")])

    with pytest.raises(InternalError, match="'b'"):
        resolver.resolve("b")
    with pytest.raises(InternalError, match="'b'"):
        resolver.for_job("b", "g")


def test_a_durable_job_stands_in_its_own_group_with_the_weight_of_its_task() -> None:
    heavy = SchedulingMetadata.model("openai", "gpt-5", "chat", weight=4)
    resolver = TaskSchedulingResolver(
        [define("a", heavy, limit_keys=("host:x",), slot="thread"), define("b")]
    )

    resolved = resolver.for_job("a", "tenant-1")

    assert resolved.group == TaskGroupSpec("tenant-1", 4)
    # The keyed limit holds in the store.
    assert resolved.resource_request.amounts == {"submission": 1, "thread": 1}
    assert resolver.for_job("a", "tenant-1") is resolved
    assert resolver.for_job("b", "b").group == TaskGroupSpec("b", 1)


def test_a_durable_group_of_several_tasks_weighs_as_the_heaviest_and_does_not_flap() -> None:
    resolver = TaskSchedulingResolver(
        [define("light"), define("heavy", SchedulingMetadata.local("h", weight=4))]
    )

    weights = [
        resolver.for_job(task, "g").group.weight
        for task in ("light", "light", "heavy", "light", "heavy")
    ]

    assert weights == [1, 1, 4, 4, 4]
    assert resolver.for_job("light", "g").group is resolver.for_job("heavy", "g").group


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 10)
    resolver = TaskSchedulingResolver([define("a")])

    for n in range(100):
        assert resolver.for_job("a", f"g{n}").group.key == f"g{n}"
        assert f"host:{n}" in resolver.resolve("a", [f"host:{n}"]).resource_request.amounts

    assert len(resolver._jobs) <= 10
    assert len(resolver._groups) <= 10
    assert len(resolver._keyed) <= 10


def test_it_tells_what_it_holds() -> None:
    resolver = TaskSchedulingResolver([define("a", endpoints=(Endpoint(GPT),))])

    assert repr(resolver) == "<TaskSchedulingResolver 1 definitions, 1 diagnostics>"
