# SPDX-License-Identifier: Apache-2.0
"""Does a model column ask what it must, ask again where the answer is wrong, and know its costs?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.clock import SystemClock
from penstock.definitions.column import JudgeColumn, LlmColumn
from penstock.definitions.provider import Provider, ProviderOptions
from penstock.definitions.table import Table
from penstock.definitions.template import TemplateFailed
from penstock.model.spending import Price
from penstock.model.table import CellFigures, Row
from penstock.requests import attempt_context
from penstock.requests.journal.paid_policy import PaidPolicy
from penstock.tables.chat import AnswerRejected
from penstock.tables.model_columns import CellTally, FileUnreadable, ModelColumn, ModelRefused
from tests.outbound_run import PROVIDER
from tests.paid_run import PaidRun, paid_run
from tests.scripted_server import Call, scripted


class Score(BaseModel):
    stars: int
    reason: str


GOOD = '{"stars": 4, "reason": "warm"}'
WRITER = Provider(PROVIDER, ProviderOptions(base_url="https://models.example/v1"))
CLOCK = SystemClock()


class Models:
    """A service that answers the n-th call as a test says: a text, a reply, or a status."""

    def __init__(self, *answers: str | bytes | int) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, call: Call) -> None:
        self.asked.append(json.loads(call.body))
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, int):
            body = {"error": {"message": f"no: {self.asked[-1]['messages'][0]['content']}"}}
            await call.answer(answer, json.dumps(body).encode())
        else:
            await call.answer(200, answer if isinstance(answer, bytes) else completion(answer))


def completion(text: str, finish_reason: str = "stop") -> bytes:
    choice = {"message": {"content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return json.dumps({"model": "m-1", "choices": [choice], "usage": usage}).encode()


def llm(**options: Any) -> LlmColumn:
    table = Table("reviews")
    options = {"prompt": "Review {{ product }}.", **options}
    return table.llm("review", model=WRITER.model("m", max_tokens=9), **options)


def judge(**options: Any) -> JudgeColumn:
    table = Table("reviews")
    rubric = {"helpful": "1 to 5", "true": "1 to 3, where 3 is true"}
    options = {"of": ["review"], "rubric": rubric, **options}
    return table.judge("quality", model=WRITER.model("m"), **options)


def answered(
    column: LlmColumn | JudgeColumn,
    models: Models,
    row: Row,
    *,
    rules: PaidPolicy | None = None,
    attempts: int = 1,
) -> tuple[Any, CellFigures]:
    """The value of a cell, and what its last attempt cost; an error is the value."""
    rules = rules or PaidPolicy(PROVIDER, prices={"m": Price(1_000_000, 2_000_000)})

    async def main() -> tuple[Any, CellFigures]:
        async with scripted(models) as server, paid_run(f"{server.url}/v1", rules=rules) as run:
            WRITER.bind(run.clients)
            try:
                for _ in range(attempts):
                    value, figures = await once(run)
            finally:
                WRITER.unbind(run.clients)
        return value, figures

    async def once(run: PaidRun) -> tuple[Any, CellFigures]:
        with run.attempt():
            whole = attempt_context.current.get()
            assert whole is not None
            part = whole.part("0:review")
            attempt_context.current.set(part)
            tally = CellTally(CLOCK)
            try:
                value: Any = await ModelColumn(column).answer(row, tally)
            except Exception as error:
                value = error
            return value, tally.figures(part)

    return asyncio.run(main())


def test_the_prompt_of_a_row_is_asked_with_the_parameters_of_model_and_column() -> None:
    models = Models("Very warm.")
    column = llm(system="You are {{ tone }}.", parameters={"temperature": 0.5})
    value, _ = answered(column, models, {"product": "a coat", "tone": "dry"})
    assert value == "Very warm."
    assert models.asked == [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "You are dry."},
                {"role": "user", "content": "Review a coat."},
            ],
            "max_tokens": 9,
            "temperature": 0.5,
        }
    ]


def test_a_cell_knows_what_it_cost_and_that_it_was_bought_before() -> None:
    models = Models("Very warm.")
    _, figures = answered(llm(), models, {"product": "a coat"})
    assert (figures.model, figures.attempts, figures.verdict) == ("m-1", 1, None)
    assert (figures.input_tokens, figures.cached_tokens, figures.output_tokens) == (10, None, 5)
    assert (figures.micros, figures.calls, figures.reused) == (20, 1, 0)
    assert str(figures.fingerprint).endswith("#0:review")
    assert figures.served_seconds is not None
    value, again = answered(llm(), models, {"product": "a coat"}, attempts=3)
    assert (value, again.micros, again.calls, again.reused) == ("Very warm.", 20, 1, 1)
    assert len(models.asked) == 2


def test_money_without_a_known_price_is_unknown() -> None:
    _, figures = answered(llm(), Models("x"), {"product": "a"}, rules=PaidPolicy(PROVIDER))
    assert (figures.micros, figures.input_tokens) == (None, 10)


def test_what_a_reply_does_not_report_is_unknown() -> None:
    silent = json.dumps({"choices": [{"message": {"content": "x"}}]}).encode()
    _, figures = answered(llm(), Models(silent), {"product": "a"})
    assert (figures.micros, figures.input_tokens, figures.output_tokens) == (None, None, None)
    assert figures.calls == 1


def test_an_answer_that_breaks_its_schema_is_asked_for_again_with_what_was_wrong() -> None:
    models = Models("Hm, four?", '{"stars": "many"}', f"Sorry: {GOOD}")
    value, figures = answered(llm(schema=Score), models, {"product": "a coat"})
    assert value == {"stars": 4, "reason": "warm"}
    assert (figures.attempts, figures.calls, figures.micros) == (3, 3, 60)
    second, third = (one["messages"] for one in models.asked[1:])
    assert [turn["role"] for turn in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == "Hm, four?"
    assert "has no JSON in it" in second[2]["content"]
    assert third[1]["content"] == '{"stars": "many"}'
    assert "stars: int parsing; reason: missing" in third[2]["content"]


def test_asking_again_ends_and_buys_no_try_a_second_time_after_a_crash() -> None:
    models = Models("Hm.", "Hm?", "Hm!")
    error, figures = answered(llm(schema=Score, attempts=2), models, {"product": "a"}, attempts=4)
    assert isinstance(error, AnswerRejected)
    assert (error.kind, figures.attempts, figures.verdict) == ("no JSON", 2, error.reason)
    assert len(models.asked) == 2


def test_an_answer_that_was_cut_off_says_so_and_is_kept_if_it_is_a_text() -> None:
    cut = completion('{"stars": 4, "rea', "length")
    error, _ = answered(llm(schema=Score, attempts=1), Models(cut), {"product": "a"})
    assert isinstance(error, AnswerRejected)
    assert "cut off" in error.reason
    value, figures = answered(llm(), Models(completion("Very wa", "length")), {"product": "a"})
    assert (value, figures.verdict) == ("Very wa", "cut off")


def test_a_reply_without_an_answer_is_asked_for_again_as_it_was() -> None:
    models = Models(completion("", "stop"), b'{"oops": 1}', "There.")
    value, figures = answered(llm(), models, {"product": "a"})
    assert (value, figures.attempts) == ("There.", 3)
    assert models.asked[0] == models.asked[1] == models.asked[2]


def test_a_judge_reads_what_it_judges_and_scores_it() -> None:
    scores = '{"helpful": "4/5", "true": {"score": 3, "reason": "It is."}}'
    models = Models("I like it a lot.", f"```json\n{scores}\n```")
    column = judge(prompt="The product is {{ product }}.")
    value, _ = answered(column, models, {"review": "Very warm.", "product": "a coat"})
    assert value == {
        "helpful": {"score": 4, "reason": ""},
        "true": {"score": 3, "reason": "It is."},
    }
    asked = models.asked[0]["messages"][0]["content"]
    for part in ("The product is a coat.", "review:\nVery warm.", "from 1 to 3 (where 3 is true)"):
        assert part in asked


def test_an_error_of_the_provider_says_what_it_has_against_it_without_a_quote() -> None:
    models = Models(400)
    error, figures = answered(llm(), models, {"product": "SECRETS AND MORE SECRETS"})
    assert isinstance(error, ModelRefused)
    assert str(error).startswith(f"{PROVIDER}/m answers 400: no: ")
    assert "SECRET" not in str(error)
    assert error.response.status_code == 400
    assert (figures.calls, figures.micros, len(models.asked)) == (0, 0, 1)


def test_a_row_that_has_not_what_the_prompt_asks_for_is_not_asked() -> None:
    models = Models("x")
    error, figures = answered(llm(prompt="{{ product.name }}"), models, {"product": {}})
    assert isinstance(error, TemplateFailed)
    assert (models.asked, figures.attempts) == ([], 0)


def test_files_that_columns_name_go_with_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"hi")
    (tmp_path / "paper.pdf").write_bytes(b"hi")
    row = {"picture": str(tmp_path / "cat.png"), "paper": str(tmp_path / "paper.pdf")}
    models = Models("A cat.")
    column = llm(prompt="What is this?", images="picture", documents="paper")
    assert answered(column, models, row)[0] == "A cat."
    image, paper, text = models.asked[0]["messages"][0]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,aGk="
    assert paper["file"]["filename"] == "paper.pdf"
    assert text["text"] == "What is this?"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "of type NoneType"),
        ("missing.png", "No such file"),
        ("notes.txt", "is not an image by its name"),
        ("folder.png", "Is a directory"),
    ],
)
def test_a_file_that_cannot_go_is_told_without_asking(
    value: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    models = Models("x")
    error, _ = answered(llm(prompt="?", images="picture"), models, {"picture": value})
    assert isinstance(error, FileUnreadable)
    assert message in str(error)
    assert not models.asked


def test_anthropic_is_asked_in_its_own_words() -> None:
    reply = json.dumps(
        {
            "content": [{"type": "text", "text": "Warm."}],
            "stop_reason": "end_turn",
            "model": "c-1",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 5},
        }
    ).encode()
    seen: list[Call] = []

    async def serve(call: Call) -> None:
        seen.append(call)
        await call.answer(200, reply)

    async def main() -> tuple[Any, CellFigures]:
        from penstock.redaction.secrets import Secret
        from penstock.requests.credentials import Credentials

        async with scripted(serve) as server:
            credentials = Credentials(server.url, "anthropic", Secret("key"))
            async with paid_run(server.url, credentials=credentials) as run:
                WRITER.bind(run.clients)
                try:
                    with run.attempt():
                        tally = CellTally(CLOCK)
                        value = await ModelColumn(llm()).answer({"product": "a"}, tally)
                        return value, tally.figures(None)
                finally:
                    WRITER.unbind(run.clients)

    value, figures = asyncio.run(main())
    assert (value, figures.input_tokens, figures.cached_tokens) == ("Warm.", 5, 2)
    assert seen[0].path == "/v1/messages"
    assert seen[0].headers["x-api-key"] == "key"
    assert seen[0].headers["anthropic-version"]
