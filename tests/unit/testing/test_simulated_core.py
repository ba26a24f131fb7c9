# SPDX-License-Identifier: Apache-2.0
"""Does a simulated provider decide as its rules say, and the same way twice?"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.testing import (
    Bucket,
    Change,
    Lognormal,
    ProviderRules,
    Reply,
    SimulatedRequest,
    Window,
)
from penstock.testing.simulated_provider import Ending
from penstock.testing.simulated_provider.core import Answer, OpenCall, ProviderCore, Script

WALL = 1_700_000_000.0


class Desk:
    """A core and its time."""

    def __init__(
        self,
        rules: ProviderRules,
        *,
        seed: int = 0,
        changes: tuple[Change, ...] = (),
        script: Script | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.core = ProviderCore(rules, seed, changes, script, answer)

    def call(
        self, at: float = 0.0, path: str = "/x", body: bytes = b"", method: str = "GET"
    ) -> OpenCall:
        return self.core.begin(method, path, {}, body, 50.0 + at, WALL + at)

    def chat(self, at: float = 0.0, **fields: object) -> OpenCall:
        asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
        return self.call(at, "/v1/chat/completions", msgspec.json.encode(asked), "POST")

    def end(self, visit: OpenCall, at: float = 0.0, *, whole: bool = True) -> None:
        self.core.finish(visit, 50.0 + at, whole=whole)


def header(visit: OpenCall, name: str) -> str | None:
    return dict(visit.reply.headers).get(name)


def content(visit: OpenCall) -> bytes:
    return b"".join(part.data for part in visit.reply.parts)


def test_concurrency_counts_from_arrival_to_the_end_of_the_body() -> None:
    desk = Desk(ProviderRules(concurrency=2))

    first, second, third = (desk.call() for _ in range(3))
    desk.end(third)
    desk.end(first, whole=False)
    fourth = desk.call()

    statuses = [visit.reply.status for visit in (first, second, third, fourth)]
    assert statuses == [200, 200, 429, 200]
    assert header(third, "retry-after") == "1"
    assert desk.core.counts.in_flight == desk.core.counts.in_flight_max == 2
    assert (desk.core.counts.refused, desk.core.counts.abandoned) == (1, 1)


def test_second_end_of_a_call_changes_nothing() -> None:
    desk = Desk(ProviderRules(concurrency=1))
    visit = desk.call()

    desk.end(visit)
    desk.end(visit, whole=False)

    assert desk.core.counts.in_flight == 0
    assert (desk.core.counts.served, desk.core.counts.abandoned) == (1, 0)


def test_bucket_lets_a_burst_pass_and_then_its_rate() -> None:
    desk = Desk(ProviderRules(requests=Bucket(10, burst=3)))

    at_once = [desk.call(0.0).reply.status for _ in range(5)]
    refused = desk.call(0.05)
    later = [desk.call(0.1).reply.status for _ in range(2)]

    assert at_once == [200, 200, 200, 429, 429]
    assert refused.reply.status == 429
    assert later == [200, 429]


def test_bucket_of_one_is_strict_spacing() -> None:
    desk = Desk(ProviderRules(requests=Bucket(10)))

    statuses = [desk.call(at).reply.status for at in (0.0, 0.09, 0.1, 0.15, 0.2)]

    assert statuses == [200, 429, 200, 429, 200]


def test_window_begins_anew_and_tells_when() -> None:
    desk = Desk(ProviderRules(requests=Window(2, seconds=10)))

    visits = [desk.call(at) for at in (0.0, 1.0, 7.0, 10.0, 11.0, 12.0)]

    assert [visit.reply.status for visit in visits] == [200, 200, 429, 200, 200, 429]
    assert header(visits[2], "retry-after") == "3"  # 10 - 7


def test_refusals_can_cost_quota() -> None:
    generous = Desk(ProviderRules(requests=Bucket(1, burst=1)))
    strict = Desk(ProviderRules(requests=Bucket(1, burst=1, refusals_count=True)))

    for desk in (generous, strict):
        desk.call(0.0)
        desk.call(0.5)

    assert generous.call(1.0).reply.status == 200
    assert strict.call(1.0).reply.status == 429


def test_tokens_are_what_the_reply_says_was_used() -> None:
    desk = Desk(ProviderRules(tokens=Bucket(1, burst=30)))

    first = desk.chat(max_tokens=20)
    usage = msgspec.json.decode(content(first))["usage"]
    desk.end(first)
    second = desk.chat(max_tokens=20)

    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert desk.core.counts.tokens == usage["total_tokens"]
    assert second.reply.status == 429
    assert msgspec.json.decode(content(second))["error"]["code"] == "rate_limit_exceeded"


def test_call_larger_than_the_bucket_passes_when_it_is_full() -> None:
    desk = Desk(ProviderRules(tokens=Bucket(1, burst=5)))

    assert desk.chat(0.0, max_tokens=400).reply.status == 200
    assert desk.chat(1.0, max_tokens=400).reply.status == 429


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (ProviderRules(concurrency=0), "1"),
        (ProviderRules(concurrency=0, retry_after_seconds=17.2), "18"),
        (ProviderRules(concurrency=0, retry_after=None), None),
        (ProviderRules(concurrency=0, retry_after_text="soon"), "soon"),
    ],
)
def test_retry_after_is_told_as_the_rules_say(rules: ProviderRules, expected: str | None) -> None:
    assert header(Desk(rules).call(), "retry-after") == expected


def test_retry_after_can_be_a_date() -> None:
    desk = Desk(ProviderRules(concurrency=0, retry_after="date", retry_after_seconds=30))

    told = header(desk.call(5.0), "retry-after")

    assert told is not None
    assert parsedate_to_datetime(told).timestamp() == WALL + 35


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "openai",
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
            },
        ),
        (
            "anthropic",
            {
                "anthropic-ratelimit-requests-limit": "60",
                "anthropic-ratelimit-requests-remaining": "59",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:21Z",
            },
        ),
        (
            "github",
            {
                "x-ratelimit-limit": "60",
                "x-ratelimit-remaining": "59",
                "x-ratelimit-used": "1",
                "x-ratelimit-reset": "1700000001",
            },
        ),
        ("ietf", {"ratelimit": '"requests";r=59;t=1', "ratelimit-policy": '"requests";q=60;w=60'}),
        (
            "ietf_three",
            {"ratelimit-limit": "60", "ratelimit-remaining": "59", "ratelimit-reset": "1"},
        ),
    ],
)
def test_rate_headers_have_the_style_of_their_provider(
    style: str, expected: dict[str, str]
) -> None:
    rules = ProviderRules(requests=Bucket.per_minute(60), headers=style)  # type: ignore[arg-type]

    told = dict(Desk(rules).call().reply.headers)

    assert expected.items() <= told.items()


def test_rules_change_after_a_time_and_after_a_call() -> None:
    tight, wide = ProviderRules(concurrency=0), ProviderRules()
    desk = Desk(
        wide,
        changes=(Change(rules=tight, after_calls=2), Change(rules=wide, after_seconds=60)),
    )

    statuses = [desk.call(at).reply.status for at in (0.0, 1.0, 2.0, 59.0, 60.0, 61.0)]

    assert statuses == [200, 200, 429, 429, 200, 200]


def test_level_of_a_rate_survives_a_change_of_other_rules() -> None:
    rate = Window(1, seconds=100)
    desk = Desk(ProviderRules(requests=rate))
    desk.call()

    desk.core.change(ProviderRules(requests=rate, latency=9.0))

    assert desk.call(1.0).reply.status == 429


def test_outage_fails_every_call_in_its_time() -> None:
    desk = Desk(ProviderRules(outages=((10, 20),), failure_status=502))

    statuses = [desk.call(at).reply.status for at in (0.0, 10.0, 19.9, 20.0)]

    assert statuses == [200, 502, 502, 200]


def test_faults_come_at_their_rates() -> None:
    rules = ProviderRules(failure_rate=0.1, reset_rate=0.1, hang_rate=0.1, lie_rate=0.1)
    desk = Desk(rules, seed=3)

    visits = [desk.call() for _ in range(2_000)]

    endings = [visit.reply.ending for visit in visits]
    assert 150 < sum(visit.reply.status == 503 for visit in visits) < 250
    assert 150 < sum(b"went wrong" in content(visit) for visit in visits) < 250
    assert 110 < endings.count(Ending.RESET) < 210  # 0.1 of what is not failed or a lie
    assert 90 < endings.count(Ending.HANG) < 190


def test_reset_body_promises_more_than_it_sends() -> None:
    visit = Desk(ProviderRules(reset_rate=1.0)).call()

    assert visit.reply.length is not None
    assert 0 < len(content(visit)) < visit.reply.length


def test_same_seed_gives_the_same_answers_and_another_seed_others() -> None:
    rules = ProviderRules(latency=Lognormal(1.0), failure_rate=0.2, requests=Bucket(100, burst=5))

    def course(seed: int) -> list[tuple[int | None, float, bytes]]:
        desk = Desk(rules, seed=seed)
        visits = [desk.chat(number / 100) for number in range(50)]
        return [(visit.reply.status, visit.reply.wait_seconds, content(visit)) for visit in visits]

    assert course(1) == course(1)
    assert course(1) != course(2)


def test_lognormal_latency_has_its_median() -> None:
    desk = Desk(ProviderRules(latency=Lognormal(2.0, sigma=0.5)))

    waits = sorted(desk.call().reply.wait_seconds for _ in range(2_001))

    assert 1.85 < waits[1_000] < 2.15
    assert waits[-1] > 5


def test_latency_may_be_a_function_of_the_request() -> None:
    desk = Desk(ProviderRules(latency=lambda request: 1.0 + request.in_flight))

    waits = [desk.call().reply.wait_seconds for _ in range(3)]

    assert waits == [1.0, 2.0, 3.0]


def test_script_answers_before_the_limits_and_answer_behind_them() -> None:
    def script(request: SimulatedRequest) -> Reply | None:
        return Reply.of(b"teapot", status=418) if request.path == "/tea" else None

    desk = Desk(
        ProviderRules(requests=Window(1)),
        script=script,
        answer=lambda request: {"asked": request.path},
    )

    visits = [desk.call(path=path) for path in ("/a", "/tea", "/b?c=d")]

    assert [visit.reply.status for visit in visits] == [200, 418, 429]
    assert content(visits[0]) == b'{"asked":"/a"}'
    assert visits[2].request.query == "c=d"


def test_streams_speak_openai_and_anthropic() -> None:
    desk = Desk(ProviderRules(latency=1.0))

    openai = desk.chat(stream=True, stream_options={"include_usage": True})
    asked = msgspec.json.encode({"messages": [], "max_tokens": 10, "stream": True})
    anthropic = desk.call(path="/v1/messages", body=asked, method="POST")

    assert content(openai).endswith(b"data: [DONE]\n\n")
    assert b'"usage":{"prompt_tokens":' in content(openai)
    assert b"event: message_start\n" in content(anthropic)
    assert content(anthropic).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    for visit in (openai, anthropic):
        waits = visit.reply.wait_seconds + sum(part.wait_seconds for part in visit.reply.parts)
        assert waits == pytest.approx(1.0)
        assert visit.reply.length is None


def test_errors_have_the_form_of_their_api() -> None:
    desk = Desk(ProviderRules(concurrency=0))

    plain = desk.call()
    anthropic = desk.call(path="/v1/messages", body=b"{}", method="POST")

    assert msgspec.json.decode(content(plain))["error"] == "concurrency"
    assert msgspec.json.decode(content(anthropic))["error"]["type"] == "rate_limit_error"


def test_log_has_every_call_in_the_order_of_arrival() -> None:
    desk = Desk(ProviderRules(concurrency=1))
    first = desk.call(0.0, "/1")
    desk.call(0.5, "/2")
    desk.end(first, 2.0)

    seen = [(call.path, call.at_seconds, call.status, call.refused) for call in desk.core.log]

    assert seen == [("/1", 0.0, 200, False), ("/2", 0.5, 429, True)]
    assert desk.core.log[0].ended_seconds == 2.0


def test_senseless_rules_are_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="not negative"):
        ProviderRules(concurrency=-1)
    with pytest.raises(UsageError, match="failure_rate is a part between 0 and 1"):
        ProviderRules(failure_rate=2)
    with pytest.raises(UsageError, match="positive rate"):
        Bucket(0)
    with pytest.raises(UsageError, match="positive limit"):
        Window(0)
    with pytest.raises(UsageError, match="either after_seconds or after_calls"):
        Change(rules=ProviderRules())
