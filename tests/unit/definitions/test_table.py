# SPDX-License-Identifier: Apache-2.0
"""Tables as declared: what each column needs and is identified by, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import Context, Penstock
from penstock.definitions.column import LlmColumn
from penstock.definitions.provider import Model
from penstock.definitions.table import Table
from penstock.errors import UsageError
from penstock.model.table import ColumnKind, Criterion, OnFail


class Score(BaseModel):
    stars: int
    reason: str


@pytest.fixture
def app() -> Penstock:
    return Penstock("tabled")


@pytest.fixture
def table(app: Penstock) -> Table:
    """A table with a seed, a sample and a review."""
    made = app.table("reviews")
    made.seed("product", source=[{"name": "Lamp"}])
    made.sample("stars", choices=[1, 2, 3])
    made.llm("review", model=model(app), prompt="{{ stars }} stars for {{ product.name }}")
    return made


def model(app: Penstock) -> Model:
    provider = app.providers.get("openai") or app.provider("openai")
    return provider.model("gpt-5", temperature=0.9)


def identities(build: Callable[[Table, Model], Any], seed: int = 0) -> dict[str, str]:
    """Of the columns of a table that is declared so, each time in an app of its own."""
    app = Penstock("tabled")
    made = app.table("reviews", seed=seed)
    build(made, model(app))
    return dict(made.identities)


def test_needs_come_from_templates_parameters_and_code(app: Penstock, table: Table) -> None:
    table.sample("tone", choices=["dry", "warm"], when="{{ stars > 2 }}", otherwise=["angry"])
    table.expression("title", "{{ tone }}: {{ product.name }}", skip_when="{{ stars == 1 }}")
    table.llm(
        "score", model=model(app), prompt="{{ review }}", system="As {{ tone }}", schema=Score
    )
    table.judge("quality", model=model(app), of=["review", "title"], rubric={"good": "1 to 5"})
    table.check("long", lambda row: len(row["review"]) > 4 and row.get("title") != "")
    table.check("named", lambda review, product: product["name"] in review)

    @table.column()
    async def embedding(ctx: Context, review: str, scale: float = 2) -> list[float]:
        return [scale]

    @table.column(batch=True, needs=["stars"])
    def ranks(rows: list[dict[str, Any]]) -> list[int]:
        return [row["stars"] for row in rows]

    needs = {name: column.needs for name, column in table.columns.items()}

    assert needs == {
        "product": (),
        "stars": (),
        "review": ("stars", "product"),
        "tone": ("stars",),
        "title": ("tone", "product", "stars"),
        "score": ("review", "tone"),
        "quality": ("review", "title"),
        "long": ("review", "title"),
        "named": ("review", "product"),
        "embedding": ("review",),
        "ranks": ("stars",),
    }
    assert table.columns["ranks"].needs_group
    assert (table.columns["embedding"].slot, table.columns["ranks"].slot) == ("async", "thread")


def test_a_row_that_is_passed_on_beside_a_text_needs_no_column_of_that_name(table: Table) -> None:
    def has(row: Any, name: str) -> bool:
        return name in row

    made = table.check("x", lambda row: has(row, "nothing") or any(row["review"] for _ in "a"))

    assert made.needs == ("review",)


def test_columns_are_ordered_by_what_they_need_and_not_by_where_they_stand(app: Penstock) -> None:
    table = app.table("late")
    table.expression("c", "{{ b }}{{ a }}")
    table.expression("b", "{{ a }}")
    table.sample("a", choices=[1])

    assert table.order == ("a", "b", "c")
    assert list(table.columns) == ["c", "b", "a"]


def test_a_changed_prompt_changes_its_column_and_those_that_need_it() -> None:
    def build(prompt: str) -> Callable[[Table, Model], None]:
        def build(table: Table, model: Model) -> None:
            table.sample("stars", choices=[1, 2])
            table.llm("first", model=model, prompt="{{ stars }}")
            table.llm("second", model=model, prompt=prompt)
            table.llm("third", model=model, prompt="{{ second }}")

        return build

    before, after = identities(build("{{ first }}")), identities(build("Now {{ first }}"))

    assert [name for name in before if before[name] != after[name]] == ["second", "third"]


def test_what_needs_a_column_of_the_whole_group_depends_on_it_too(table: Table) -> None:
    table.check("new", sql="count(*) = 1", needs="stars")
    table.expression("told", "{{ new }}")
    table.expression("shown", "{{ told }}")
    table.expression("own", "{{ stars }}")

    assert table.group_columns == {"new", "told", "shown"}


def test_a_change_is_told_with_what_it_touches() -> None:
    def build(prompt: str, *more: str) -> Table:
        table = Penstock("tabled").table("reviews")
        table.sample("stars", choices=[1])
        table.expression("title", prompt)
        table.expression("shouted", "{{ title|upper }}")
        for name in more:
            table.expression(name, "{{ stars }}")
        return table

    before = build("{{ stars }}", "old").identities
    touched = build("Now {{ stars }}", "added").touched_since(before)

    assert (touched.kept, touched.gone) == (("stars",), ("old",))
    assert (touched.changed, touched.following) == (("title", "added"), ("shouted",))
    assert build("{{ stars }}", "old").touched_since(before).kept == tuple(before)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            lambda t, m: t.llm("x", model=m, prompt="a"),
            lambda t, m: t.llm("x", model=m, prompt="b"),
        ),
        (
            lambda t, m: t.llm("x", model=m, prompt="a"),
            lambda t, m: t.llm("x", model=m.provider.model("gpt-5"), prompt="a"),
        ),
        (
            lambda t, m: t.llm("x", model=m, prompt="a"),
            lambda t, m: t.llm("x", model=m, prompt="a", parameters={"top_p": 1}),
        ),
        (
            lambda t, m: t.llm("x", model=m, prompt="a"),
            lambda t, m: t.llm("x", model=m, prompt="a", schema=Score),
        ),
        (
            lambda t, m: t.llm("x", model=m, prompt="a"),
            lambda t, m: t.llm("x", model=m, prompt="a", system="b"),
        ),
        (lambda t, m: t.sample("x", choices=[1]), lambda t, m: t.sample("x", choices=[2])),
        (lambda t, m: t.sample("x", uniform=(0, 1)), lambda t, m: t.sample("x", normal=(0, 1))),
        (lambda t, m: t.expression("x", "1"), lambda t, m: t.expression("x", "1", type=int)),
        (lambda t, m: t.expression("x", "1"), lambda t, m: t.expression("x", "1", version=2)),
        (
            lambda t, m: t.check("x", lambda row: row["y"] > 1, on_fail="drop"),
            lambda t, m: t.check("x", lambda row: row["y"] > 2, on_fail="drop"),
        ),
        (
            lambda t, m: t.check("x", lambda row, least=1: row["y"] > least),
            lambda t, m: t.check("x", lambda row, least=2: row["y"] > least),
        ),
    ],
)
def test_what_makes_the_values_is_part_of_the_identity(
    one: Callable[[Table, Model], Any], other: Callable[[Table, Model], Any]
) -> None:
    def with_y(build: Callable[[Table, Model], Any]) -> Callable[[Table, Model], Any]:
        return lambda t, m: (t.sample("y", choices=[1]), build(t, m))

    assert identities(with_y(one))["y"] == identities(with_y(other))["y"]
    assert identities(with_y(one))["x"] != identities(with_y(other))["x"]


def test_the_seed_of_the_table_is_part_of_what_is_drawn_and_of_nothing_else() -> None:
    def build(table: Table, model: Model) -> None:
        table.seed("product", source=["a"])
        table.sample("stars", choices=[1, 2])
        table.expression("title", "{{ product }}")

    before, after = identities(build), identities(build, seed=1)

    assert [name for name in before if before[name] != after[name]] == ["stars"]


def test_what_hides_a_column_or_follows_its_failures_changes_the_version_and_no_identity(
    app: Penstock,
) -> None:
    versions, found = set(), set()
    for number, options in enumerate([{}, {"keep": False}, {"on_fail": "null"}]):
        table = app.table(f"t{number}")
        table.sample("x", choices=[1])
        table.expression("a", "{{ x }}", **options)  # type: ignore[arg-type]
        table.expression("b", "{{ a }}")
        versions.add(table.version)
        found.add(table.identities["b"])

    assert (len(versions), len(found)) == (3, 1)


def test_a_longer_source_changes_no_identity() -> None:
    def build(source: Any) -> Callable[[Table, Model], Any]:
        return lambda t, m: t.seed("product", source=source)

    assert identities(build(["a"])) == identities(build(["a", "b"]))  # records are compared


def test_a_rubric_names_ranges_and_their_meaning(app: Penstock, table: Table) -> None:
    rubric = {"helpful": "1 to 5", "true to it": "0-10: ten is best", "cold": "-3 to 3, 0 is none"}
    made = table.judge("quality", model=model(app), of="review", rubric=rubric)

    assert made.rubric == (
        Criterion("helpful", 1, 5),
        Criterion("true to it", 0, 10, "ten is best"),
        Criterion("cold", -3, 3, "0 is none"),
    )


def test_a_check_makes_the_nearest_answers_anew(app: Penstock, table: Table) -> None:
    table.expression("shouted", "{{ review|upper }}")
    table.llm("summary", model=model(app), prompt="{{ review }}")
    table.check("loud", lambda shouted, stars: True, on_fail="again")
    table.check("both", lambda summary, shouted: True, on_fail="again")

    assert table.judged("loud") == ("review",)
    assert table.judged("both") == ("review", "summary")
    assert table.columns["loud"].on_fail is OnFail.AGAIN


def test_a_function_stays_what_it_was(table: Table) -> None:
    @table.column()
    def length(review: str) -> int:
        return len(review)

    assert length("four") == 4
    assert table.columns["length"].kind is ColumnKind.FUNCTION


def test_an_llm_column_keeps_what_is_said_about_it(app: Penstock, table: Table) -> None:
    made = table.columns["review"]

    assert isinstance(made, LlmColumn)
    assert (made.model.name, made.model.parameters) == ("gpt-5", {"temperature": 0.9})
    assert made.prompt.render({"stars": 2, "product": {"name": "Lamp"}}) == "2 stars for Lamp"
    assert (made.attempts, made.on_fail, made.slot) == (3, OnFail.DROP, "async")


def bad_hint(review: Nobody) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def starred(*review: str) -> str:
    return ""


def generated(review: str) -> Any:
    yield review


def unannotated(review):  # type: ignore[no-untyped-def]
    return review


def shouted(review: str) -> str:
    return review.upper()


def both(row: Any, review: str) -> str:
    return review


async def later(review: str) -> bool:
    return True


def with_context(ctx: Context, review: str) -> bool:
    return True


#: Declarations on the table above, and what each is refused with.
MISTAKES: list[tuple[Callable[[Any, Any], Any], str]] = [
    # names
    (lambda t, m: t.sample("stars", choices=[1]), "'stars' of table 'reviews' is there already;"),
    (lambda t, m: t.sample("Stars", choices=[1]), "as 'stars', which differs in case only"),
    (lambda t, m: t.sample("two words", choices=[1]), "a name is a letter and then at most 63"),
    (lambda t, m: t.sample("row", choices=[1]), "means something in templates or functions"),
    (lambda t, m: t.sample("class", choices=[1]), "means something in templates or functions"),
    # templates
    (lambda t, m: t.expression("x", "{{ stars"), r"the template cannot be read \(line 1\): "),
    (lambda t, m: t.expression("x", "{{ stars|shout }}"), "No filter named 'shout'"),
    (lambda t, m: t.expression("x", "{% include 'x' %}"), "cannot take in another file"),
    (lambda t, m: t.expression("x", "{% if 1 %}{% include 'x' %}{% endif %}"), "another file"),
    (
        lambda t, m: t.expression("x", "{{ stars.__class__ }}"),
        "cannot read '__class__': names that",
    ),
    (lambda t, m: t.expression("x", "{{ stars['_a'] }}"), "cannot read '_a'"),
    (lambda t, m: t.expression("x", 3), "is a text, got 3"),
    (lambda t, m: t.expression("x", "1", type=list), "type= is str, int, float or bool, got"),
    (lambda t, m: t.llm("x", model=m, prompt="{{ "), "'x' of table 'reviews', prompt=: the templ"),
    (lambda t, m: t.llm("x", model=m, prompt="", system="{% x %}"), "system=: the template cannot"),
    (lambda t, m: t.expression("x", "1", skip_when="{{ a }} {{ b }}"), "skip_when= is one express"),
    (lambda t, m: t.expression("x", "1", skip_when="{{ a > }}"), "skip_when=: the template cannot"),
    (lambda t, m: t.expression("x", "1", skip_when=True), "skip_when= is a text such as"),
    # options
    (lambda t, m: t.expression("x", "1", kep=True), "no option 'kep'; closest: 'keep'"),
    (lambda t, m: t.expression("x", "1", keep=0), "keep= is True or False, got 0"),
    (lambda t, m: t.expression("x", "1", attempts=2), "attempts= is for what may turn out other"),
    (
        lambda t, m: t.expression("x", "1", on_fail="ignore"),
        "on_fail= is one of 'again', 'drop', 'n",
    ),
    (lambda t, m: t.expression("x", "1", on_fail="again"), "on_fail='again' is for checks"),
    (lambda t, m: t.expression("x", "1", skip_value=1), "skip_value= needs skip_when="),
    (
        lambda t, m: t.expression("x", "1", skip_when="a", skip_value={1}),
        r"skip_value= is JSON, and \$",
    ),
    (lambda t, m: t.expression("x", "1", version=1.5), "version= is a whole number or a text"),
    (
        lambda t, m: t.llm("x", model=m, prompt="", attempts=0),
        "attempts= is a whole number from 1 to",
    ),
    # models
    (
        lambda t, m: t.llm("x", model="gpt-5", prompt=""),
        "model= is a model of a provider, such as op",
    ),
    (
        lambda t, m: t.llm("x", model=m, prompt="", parameters={"model": "y"}),
        "'model' is said by each",
    ),
    (
        lambda t, m: t.llm("x", model=m, prompt="", parameters={"a": {1}}),
        r"as JSON, and \$.a is a value",
    ),
    (lambda t, m: t.llm("x", model=m, prompt="", parameters=3), "parameters= is a mapping"),
    (
        lambda t, m: t.llm("x", model=m, prompt="", schema=3),
        "schema= is a pydantic model or a JSON sch",
    ),
    (
        lambda t, m: t.llm("x", model=m, prompt="", images=[3]),
        "images= is a name or a list of names",
    ),
    (lambda t, m: m.provider.model("gpt-5", stream=True), "'stream' is said by each column itself"),
    (lambda t, m: m.provider.model(""), "model name of provider 'openai' has 1 to"),
    # judges
    (lambda t, m: t.judge("x", model=m, of=[], rubric={"a": "1 to 5"}), "there is none"),
    (lambda t, m: t.judge("x", model=m, of="review", rubric={}), "rubric= is a mapping such as"),
    (lambda t, m: t.judge("x", model=m, of="review", rubric={"a": "high"}), "says its range first"),
    (lambda t, m: t.judge("x", model=m, of="review", rubric={"a": "5 to 1"}), "from low to high"),
    # checks and functions
    (
        lambda t, m: t.check("x"),
        "takes one of these: a function, schema= with of=, or sql=; it has 0",
    ),
    (lambda t, m: t.check("x", lambda row: row["review"], sql="1"), "it has 2"),
    (
        lambda t, m: t.check("x", schema=Score),
        "schema= and of=, the column that it is about, go tog",
    ),
    (lambda t, m: t.check("x", lambda row: True), "does not say which columns it takes of the row"),
    (lambda t, m: t.check("x", 3), "takes a function, got 3"),
    (lambda t, m: t.check("x", later), "is an `async def`, and a check decides at once"),
    (lambda t, m: t.check("x", with_context), "takes a context, and a check has none"),
    (lambda t, m: t.check("x", sql=" "), "sql= is an expression such as"),
    (
        lambda t, m: t.check("x", sql="stars > 1"),
        r"say which columns the SQL reads, such as needs=\[",
    ),
    (lambda t, m: t.column()(unannotated), "nothing says what its function returns"),
    (lambda t, m: t.column(lambda review: 1), r"Write @table.column\(\) with parentheses"),
    (
        lambda t, m: t.column()(starred),
        r"has the parameter .\*review: .*its parameters are columns",
    ),
    (lambda t, m: t.column()(generated), "is a generator; it returns its value"),
    (lambda t, m: t.column()(bad_hint), "has annotations that cannot be resolved"),
    (lambda t, m: t.column()(both), "takes `row` and 'review': take the row, or columns"),
    (lambda t, m: t.column(metadata="local")(shouted), "metadata is a SchedulingMetadata"),
    # seeds
    (lambda t, m: t.seed("x", source="x.xlsx"), "source 'x.xlsx' is no file of a known kind"),
    (
        lambda t, m: t.seed("x", source=3),
        "source= is a file, rows, a frame, a dataset or a function",
    ),
    (lambda t, m: t.seed("x", source=["a.csv"]), r"write \[Path\('a.csv'\), …\], or a pattern"),
    (lambda t, m: t.seed("x", source={"a": 1}), "source= is a file, rows, a frame"),
    (lambda t, m: t.seed("x", source=[Path("a.csv"), 3]), "source= has files and other things"),
    (
        lambda t, m: t.seed("x", source=["a"], order="random"),
        "order= is one of 'ordered', 'shuffled'",
    ),
    (lambda t, m: t.seed("x", source=["a"], records=(1, 2)), "records= is a range such as"),
    (lambda t, m: t.seed("x", source=["a"], records=range(5, 2)), "records= is a range such as"),
    (
        lambda t, m: t.seed("x", source=["a"], expand=lambda a, b: []),
        "plain function of one record",
    ),
    (lambda t, m: t.seed("x", source=["a"], fields=[1]), "fields= is a name or a list of names"),
]


@pytest.mark.parametrize(("declare", "message"), MISTAKES)
def test_a_mistake_is_refused_where_it_is_made(
    app: Penstock, table: Table, declare: Callable[[Table, Model], Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        declare(table, model(app))


#: Declarations that are refused once the table is whole.
WHOLE_MISTAKES: list[tuple[Callable[[Any, Any], Any], str]] = [
    (
        lambda t, m: t.expression("x", "{{ reviw }}"),
        "'x' of table 'reviews' needs 'reviw', which is no column of it; closest: 'review'",
    ),
    (lambda t, m: t.expression("x", "{{ x }}"), "need each other in a circle: 'x' → 'x'"),
    (
        lambda t, m: (t.expression("x", "{{ y }}"), t.expression("y", "{{ x }}")),
        "need each other in a circle: 'x' → 'y' → 'x'; remove one of these needs",
    ),
    (lambda t, m: t.check("x", lambda row: row["reviw"]), "needs 'reviw', which is no column"),
    (lambda t, m: t.check("x", lambda r: r["review"]), "'x' of table 'reviews' needs 'r', which"),
    (lambda t, m: t.judge("x", model=m, of="y", rubric={"a": "1 to 2"}), "needs 'y', which is no"),
    (lambda t, m: t.sample("x", choices={"a": [1]}, by="y"), "needs 'y', which is no column"),
    (lambda t, m: t.llm("x", model=m, prompt="", images="photo"), "needs 'photo', which is no"),
    (lambda t, m: t.llm("x", model=m, prompt="", keep=False), r"hidden \(keep=False\) and nothing"),
    (
        lambda t, m: (
            t.seed("x", source=["a"], fields=["name", "price"]),
            t.expression("y", "{{ x.nmae }}"),
        ),
        "'y' of table 'reviews' reads x.nmae, and 'x' has the fields 'name', 'price'",
    ),
    (
        lambda t, m: (
            t.seed("x", source=["a"], fields=["name", "price"], keep=False),
            t.expression("y", "{{ x.name }}"),
        ),
        "'x' of table 'reviews' is hidden, and nothing reads its field 'price'",
    ),
    (
        lambda t, m: t.check("x", lambda stars: stars > 1, on_fail="again"),
        "has on_fail='again', and nothing that it reads could turn out otherwise",
    ),
]


@pytest.mark.parametrize(("declare", "message"), WHOLE_MISTAKES)
def test_a_mistake_between_columns_is_refused_once_the_table_is_whole(
    app: Penstock, table: Table, declare: Callable[[Table, Model], Any], message: str
) -> None:
    declare(table, model(app))

    with pytest.raises(UsageError, match=message):
        table.validate()
    with pytest.raises(UsageError, match=message):
        app.load()


def foreign(table: Table) -> None:
    other = Penstock("other").provider("openai", base_url="http://simulated.invalid")
    table.llm("x", model=other.model("gpt-5"), prompt="")


def unknown(table: Table) -> None:
    @table.column(uses="opneai")
    def x(stars: int) -> int:
        return stars


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (foreign, "'x' of table 'reviews' has a model of a provider 'openai' of another app"),
        (unknown, r"'x' of table 'reviews' uses the provider 'opneai', which .*'openai'"),
        (lambda t: None, "asks a model of provider 'openai', which has no base_url; write app.pro"),
    ],
)
def test_a_provider_that_nobody_can_reach_is_refused_when_the_app_is_loaded(
    declare: Callable[[Table], Any], message: str
) -> None:
    app = Penstock("tabled")
    url = None if "no base_url" in message else "http://simulated.invalid"
    model = app.provider("openai", base_url=url).model("gpt-5")
    table = app.table("reviews")
    table.sample("stars", choices=[1])
    table.llm("review", model=model, prompt="{{ stars }}")
    declare(table)

    with pytest.raises(UsageError, match=message):
        app.load()


def test_a_base_url_may_be_a_setting(table: Table, app: Penstock, tmp_path: Path) -> None:
    setting = '[providers.openai]\nbase_url = "http://simulated.invalid"\n'
    (tmp_path / "penstock.toml").write_text(setting)
    loaded = app.load(folder=tmp_path)

    assert loaded.settings.providers["openai"].base_url == "http://simulated.invalid"


def test_several_mistakes_of_one_table_are_told_together(table: Table) -> None:
    table.expression("x", "{{ a }}")
    table.expression("y", "{{ b }}")

    with pytest.raises(UsageError, match=r"Table 'reviews' has 2 mistakes:\n  - .*\n  - .*'b'"):
        table.validate()


def test_a_table_without_columns_or_output_is_refused(app: Penstock) -> None:
    table = app.table("empty")
    with pytest.raises(UsageError, match="Table 'empty' has no columns"):
        table.validate()

    table.check("x", lambda y: y, keep=False)
    table.sample("y", choices=[True], keep=False)
    with pytest.raises(UsageError, match="Table 'empty' keeps no column"):
        table.validate()


def test_a_column_that_is_added_later_is_seen(table: Table) -> None:
    table.expression("x", "{{ later }}")
    with pytest.raises(UsageError, match="needs 'later'"):
        table.validate()

    table.sample("later", choices=[1])

    assert table.order[-1] == "x"
    assert table.identities["x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_size": 0}, "buffer_size= is a whole number from 1 to 100,000, got 0"),
        ({"max_row_groups": 1.5}, "max_row_groups= is a whole number"),
        ({"seed": "a"}, "seed= is a whole number"),
        ({"early_stop": 2}, "early_stop= is a part of the finished cells"),
        ({"early_stop_window": 0}, "early_stop_window= is a whole number"),
    ],
)
def test_options_of_a_table_are_checked(
    app: Penstock, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        app.table("reviews", **options)


def test_a_table_and_a_dataset_cannot_share_a_folder(app: Penstock, table: Table) -> None:
    with pytest.raises(UsageError, match="two tables named 'reviews'; rename one"):
        app.table("reviews")
    with pytest.raises(UsageError, match="'Reviews' and 'reviews' differ in case only"):
        app.table("Reviews")
    with pytest.raises(UsageError, match="cannot be called 'a b'"):
        app.table("a b")


def test_what_tables_need_is_asked_for_once(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.definitions.table.find_spec", lambda name: None)

    with pytest.raises(UsageError, match="'pip install jinja2 jsonschema pyarrow'"):
        app.table("reviews")
    assert "reviews" not in app.tables


def test_sql_without_duckdb_is_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.definitions.table.find_spec", lambda name: None)

    with pytest.raises(UsageError, match="sql= needs duckdb, which is not installed"):
        table.check("x", sql="stars > 1", needs="stars")


def test_an_app_without_tables_imports_no_template_engine() -> None:
    import subprocess

    code = "import penstock, sys; penstock.Penstock('a'); print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
