# SPDX-License-Identifier: Apache-2.0
"""Are budgets and prices read exactly, and is every one refused that would count nothing?"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Context, Penstock
from penstock.config.budgets import budgets_of, prices_of, unpriced_providers
from penstock.config.load import LoadedSettings, load_settings
from penstock.config.settings import micros_of, parse_dollars, parse_price
from penstock.config.show import list_settings
from penstock.errors import ConfigError, UsageError
from penstock.model.spending import Amount, Budget, Period, Price, format_exact_dollars, format_usd

FILE = """
journal_retention = "2d"
[budget.total]
usd = 100
[budget.run]
usd = 20
tokens = 5_000_000
[budget.day]
usd = 0.1
[budget.provider.ai.run]
tokens = 7
[budget.model."ai/gpt-5.1"]
day.usd = 3.000001
[budget.task.day.run]
usd = "1.5"
[budget.task.day.day]
tokens = 9
[providers.ai]
paid = true
[providers.ai.models."gpt-5.1"]
usd_per_million_tokens = { input = 1.25, output = 10 }
"""


def make_app(**options: Any) -> Penstock:
    app = Penstock("shop")
    ai = app.provider("ai", base_url="https://ai.example", **options)
    app.provider("web", base_url="https://web.example")

    @app.task(uses=ai, name="day")
    async def ask(ctx: Context) -> None: ...

    @app.task(uses="ai/gpt-5", name="named")
    async def named(ctx: Context) -> None: ...

    return app


def load(folder: Path, text: str, app: Penstock | None = None, **environ: str) -> LoadedSettings:
    (folder / "penstock.toml").write_text(text)
    return (app or make_app()).load(environ=environ, folder=folder)


def test_budgets_and_prices_are_read_exactly(tmp_path: Path) -> None:
    app = Penstock("shop")
    app.provider("ai", base_url="https://ai.example")

    @app.task()
    async def day(ctx: Context) -> None: ...

    loaded = load(tmp_path, FILE, app)

    assert budgets_of(loaded.settings) == (
        Budget("all", Period.TOTAL, 100_000_000),
        Budget("all", Period.RUN, 20_000_000, 5_000_000),
        Budget("all", Period.DAY, 100_000),
        Budget("provider:ai", Period.RUN, None, 7),
        Budget("model:ai/gpt-5.1", Period.DAY, 3_000_001),
        Budget("task:day", Period.RUN, 1_500_000),
        Budget("task:day", Period.DAY, None, 9),
    )
    assert prices_of(loaded.settings.providers["ai"]) == {"gpt-5.1": Price(1_250_000, 10_000_000)}
    assert loaded.settings.journal_retention == 2 * 86_400


def test_every_budget_is_listed_with_its_source_and_without_noise(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(FILE)

    loaded = load_settings({}, {"PENSTOCK_BUDGET__DAY__USD": "0.30"}, tmp_path, {})
    listed = {one.name: one for one in list_settings(loaded, tmp_path)}

    assert (listed["budget.run.usd"].value, listed["budget.run.usd"].line) == ("20", 6)
    day = listed["budget.day.usd"]
    assert (day.value, day.source) == ("0.3", "PENSTOCK_BUDGET__DAY__USD")
    assert listed["budget.day.tokens"].value is None
    assert listed['budget.model."ai/gpt-5.1".day.usd'].value == "3.000001"
    price = 'providers.ai.models."gpt-5.1".usd_per_million_tokens'
    assert (listed[f"{price}.input"].value, listed[f"{price}.output"].value) == ("1.25", "10")


def test_what_the_app_says_of_prices_is_overridden_one_by_one(tmp_path: Path) -> None:
    code = {"gpt-5": {"usd_per_million_tokens": {"input": 1.1, "output": Decimal("2.2")}}}
    text = "[providers.ai.models.gpt-5.usd_per_million_tokens]\ninput = 3\n"

    loaded = load(tmp_path, text, make_app(paid=True, models=code))

    assert prices_of(loaded.settings.providers["ai"]) == {"gpt-5": Price(3_000_000, 2_200_000)}


PAID = "[providers.ai]\npaid = true\n"
PRICED = f"""{PAID}
[providers.ai.models.gpt-5]
usd_per_million_tokens = {{ input = 1, output = 2 }}
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[budget.run]\nusd = 0",
            "budget.run.usd must be > 0 (without it there is no limit), got 0 (from "
            "penstock.toml).",
        ),
        (
            "[budget.run]\nusd = -1",
            "budget.run.usd must be > 0 (without it there is no limit), got -1",
        ),
        ("[budget.run]\nusd = inf", "must be a number of dollars, such as 12.5, got inf"),
        ('[budget.run]\nusd = "abc"', "must be a number of dollars, such as 12.5, got 'abc'"),
        ("[budget.run]\nusd = 1e300", "budget.run.usd must be <= 1000000000, got 1e+300"),
        ("[budget.run]\nusd = nan", "must be a number of dollars, such as 12.5, got nan"),
        ("[budget.run]\nusd = true", "must be a number of dollars"),
        ("[budget.run]\nusd = 1e10", "budget.run.usd must be <= 1000000000"),
        (
            PRICED.replace("input = 1", "input = 1e9"),
            "usd_per_million_tokens.input must be <= 100000 dollars of a million tokens",
        ),
        ("[budget.run]\nusd = 0.0000001", "must have at most 6 decimals"),
        ("[budget.day]\ntokens = 1.5", "budget.day.tokens must be a whole number"),
        ("[budget.run]\ntokens = 0", "budget.run.tokens must be > 0"),
        ("budget = 5", "budget must be a table, got 5"),
        ("[budget.run]\ndollars = 5", "budget.run.dollars is not a setting"),
        (
            "[budget.week]\nusd = 5",
            "budget.week is not a setting, got a table (from penstock.toml); known names in budget "
            "are total, run, day, provider, model, task.",
        ),
        ("[budget.provder.x]\nusd = 5", "the nearest known name is budget.provider."),
        ("[budget.Day]\nusd = 5", "the nearest known name is budget.day."),
        ("[budget.day]\nusb = 5", "the nearest known name is budget.day.usd."),
        (
            "[budget.run]\ntokns = 5",
            "budget.run.tokns is not a setting, got 5 (from penstock.toml)",
        ),
        ("[budget]\nday = 5", "budget.day must be a table"),
        ("[budget.provider]\nusd = 5", "budget.provider.usd must be a table"),
        (
            "[budget.provider.ai.run]\nused = 5",
            "the nearest known name is budget.provider.ai.run.usd",
        ),
        ("[budget.model.ai.run]\nusd = 5", 'must be PROVIDER/MODEL, such as "openai/gpt-5"'),
        (
            PAID + "[budget.provider.ai2.run]\nusd = 5",
            "budget.provider.ai2.run (from penstock.toml) is about a provider that the app "
            "does not "
            "define; the nearest known one is 'ai'.",
        ),
        (
            PAID + '[budget.model."ai2/gpt-5".run]\nusd = 5',
            'budget.model."ai2/gpt-5".run (from penstock.toml) is about a provider that the '
            "app does "
            "not define; the nearest known one is 'ai'.",
        ),
        (
            PAID + "[budget.task.dey.run]\ntokens = 5",
            "is about a task that the app does not define; the nearest known one is 'day'.",
        ),
        (
            "[budget.table.t.total]\ntokens = 5",
            "budget.table is not a setting (from penstock.toml): there are no tables yet.",
        ),
        (
            "[budget]\nusd = 5",
            "budget.usd does not say over what it counts (from penstock.toml): set "
            "budget.total.usd (over restarts, until it is raised or 'penstock budget reset'), "
            "budget.run.usd (each start anew, as it was) or budget.day.usd.",
        ),
        (
            "[budget.task.day]\ntokens = 5",
            "budget.task.day.tokens does not say over what it counts (from penstock.toml): set "
            "budget.task.day.total.tokens (over",
        ),
        (
            PAID + "[budget.provider.web.day]\ntokens = 5",
            "budget.provider.web.day (from penstock.toml) counts nothing, since the calls of "
            "provider 'web' cost nothing; set paid = true in [providers.web].",
        ),
        (
            "[budget.run]\ntokens = 5",
            "budget.run (from penstock.toml) counts nothing, since no provider of the app is paid; "
            "set paid = true in [providers.NAME].",
        ),
        (
            PAID + "[budget.run]\nusd = 5",
            "budget.run (from penstock.toml) counts dollars, and the price of ai/gpt-5 is "
            "not known; "
            "set usd_per_million_tokens = { input = …, output = … } in "
            '[providers.ai.models."gpt-5"].',
        ),
        (PAID + "[budget.task.named.run]\nusd = 5", "the price of ai/gpt-5 is not known"),
        (PRICED + '[budget.model."ai/gpt-6".run]\nusd = 5', "the price of ai/gpt-6 is not known"),
        (
            PRICED + "[providers.ai.models.gpt-6]\nrpm = 5\n[budget.task.day.run]\nusd = 5",
            "the price of ai/gpt-6 is not known",
        ),
        (
            PAID + "[providers.ai.models.m]\nusd_per_million_tokens = { input = 1 }",
            "usd_per_million_tokens.output must be set as well",
        ),
        (
            PAID + "[providers.ai.models.m]\nusd_per_million_tokens = 3",
            "usd_per_million_tokens must be a table, got 3",
        ),
        (
            PAID + "[providers.ai.models.m]\nusd_per_million_tokens = { inputs = 1, output = 2 }",
            "the nearest known name is providers.ai.models.m.usd_per_million_tokens.input",
        ),
        (
            PAID + "[providers.ai.models.gpt-5.1]\nusd_per_million_tokens = { input = 1 }",
            'a name with dots is written in quotes: providers.ai.models."gpt-5.1".',
        ),
        (
            PAID + "[providers.ai.models.gpt-3.5.turbo]\nrpm = 5",
            'a name with dots is written in quotes: providers.ai.models."gpt-3.5.turbo".',
        ),
        (PAID + "concurrency = 5", "the nearest known name is providers.ai.max_parallel."),
        (
            PAID + "[providers.ai.models.m]\nrps = 5",
            "the nearest known name is providers.ai.models.m.rpm, a minute's worth.",
        ),
    ],
)
def test_a_wrong_budget_is_refused_in_one_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)

    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        PRICED + "[budget.run]\nusd = 5",
        PRICED + "[budget.task.named.run]\nusd = 5",
        PRICED + "[budget.provider.ai.day]\nusd = 5",
        PAID + "[budget.provider.ai.run]\ntokens = 5",
        PAID + "[budget.task.day.run]\nusd = 5",  # its models are only known when they are called
    ],
)
def test_a_budget_that_can_be_counted_is_taken(tmp_path: Path, text: str) -> None:
    assert len(budgets_of(load(tmp_path, text).settings)) == 1


def test_providers_without_any_price_are_known(tmp_path: Path) -> None:
    app = Penstock("shop")
    app.provider("ai", base_url="https://ai.example", paid=True)

    loaded = load(tmp_path, "[budget.provider.ai.run]\nusd = 5", app)

    assert unpriced_providers(loaded.settings) == ["ai"]


def test_variables_set_the_whole_and_files_the_parts(tmp_path: Path) -> None:
    loaded = load(tmp_path, PRICED, None, PENSTOCK_BUDGET__RUN__USD="2.50")
    assert budgets_of(loaded.settings) == (Budget("all", Period.RUN, 2_500_000),)

    with pytest.raises(ConfigError, match="budgets of single names are set by"):
        load(tmp_path, PRICED, None, PENSTOCK_BUDGET__PROVIDER__AI__USD="1")


@pytest.mark.parametrize("prices", [3, {"input": 1}, {"input": 1, "output": 2, "cached": 1}, []])
def test_prices_in_code_name_both_directions(prices: Any) -> None:
    with pytest.raises(UsageError, match=r"'input': 1\.25, 'output': 10"):
        make_app(models={"m": {"usd_per_million_tokens": prices}})


@given(st.integers(1, 10**15))
def test_micro_dollars_survive_every_way_of_writing(micros: int) -> None:
    written = Decimal(micros) / 1_000_000

    assert micros_of(parse_dollars(f"{written:f}")) == micros
    assert micros_of(parse_price(written)) == micros
    if micros < 10**14:  # beyond, a float cannot hold it
        assert micros_of(parse_dollars(float(written))) == micros
    assert Decimal(format_usd(micros_of(written))) == written
    assert Decimal(format_exact_dollars(micros).replace("$", "").replace(",", "")) == written


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "$0.00"), (125, "$0.000125"), (20_000_000, "$20.00"), (-1_500_000, "-$1.50")],
)
def test_money_is_shown_exactly(micros: int, text: str) -> None:
    assert format_exact_dollars(micros) == text


def test_a_budget_says_what_it_counts() -> None:
    budget = Budget("model:ai/gpt-5", Period.DAY, 1, 2)

    assert budget.name == 'budget.model."ai/gpt-5".day'
    assert budget.settings == (
        f"{budget.name}.usd = 0.000001 in penstock.toml and "
        f"{budget.name}.tokens = 2 in penstock.toml"
    )
    assert budget.format_amount(Amount(1_000_000, 1_000)) == "$1.00 and 1,000 tokens"
    assert (budget.span("run-1", "2026-11-16"), budget.cap) == ("2026-11-16", Amount(1, 2))


def test_a_budget_knows_who_has_said_each_of_its_settings(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(FILE)
    (tmp_path / "pyproject.toml").write_text("[tool.penstock.budget.task.day.day]\nusd = 7\n")

    loaded = load_settings({}, {"PENSTOCK_BUDGET__RUN__USD": "2.50"}, tmp_path, {})
    budgets = budgets_of(loaded.settings, loaded.sources)

    assert [one.settings for one in budgets] == [
        "budget.total.usd = 100 in penstock.toml",
        "PENSTOCK_BUDGET__RUN__USD=2.5 in the environment (which goes before every file) and "
        "budget.run.tokens = 5000000 in penstock.toml",
        "budget.day.usd = 0.1 in penstock.toml",
        "budget.provider.ai.run.tokens = 7 in penstock.toml",
        'budget.model."ai/gpt-5.1".day.usd = 3.000001 in penstock.toml',
        "budget.task.day.run.usd = 1.5 in penstock.toml",
        "tool.penstock.budget.task.day.day.usd = 7 in pyproject.toml and "
        "budget.task.day.day.tokens = 9 in penstock.toml",
    ]
