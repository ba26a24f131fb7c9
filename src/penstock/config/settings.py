# SPDX-License-Identifier: Apache-2.0
"""The settings: every field with its unit, bounds and default.

Durations are float seconds here, whatever their names: files may write them as texts ("1h").
"""

from __future__ import annotations

import os
import re
import unicodedata
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from penstock.clock import parse_duration
from penstock.model.job import NAME_LENGTH_MAX
from penstock.model.lease import MAX_CRASHES
from penstock.model.provider import RATE_MAX, RATE_MIN, base_url_problem, header_problem
from penstock.model.spending import MICROS
from penstock.redaction.secrets import SecretUrl

USD_MAX = 10**9  # of a budget or a price; more is a slip of the pen
TOKEN_PRICE_MAX = 100_000  # dollars of a million tokens; more is a slip of the pen as well
DECIMALS = 6  # a micro-dollar is the smallest sum

_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)

COUNT_MAX = 1_000_000  # of slots, attempts and the like; more is a slip of the pen
BYTES_MAX = 1 << 40  # of one reply
TOKENS_MAX = 10**15  # of a budget
PLAIN_NUMBERS = frozenset({"rpm", "tpm", "decrease_factor"})  # floats that are no durations
BEAT_TOO_SLOW = "beat_too_slow"  # the kind of the error that load.py words with both sources

_WHOLE = re.compile("-?[0-9]{1,18}", re.ASCII)


def parse_price(value: object) -> Decimal:
    """Dollars, from 0.

    Raises:
        ValueError: a sentence without its subject ("must be …"), for the field's name in front.
    """
    dollars = _parsed(value)
    if dollars < 0:
        raise ValueError("must be >= 0")
    return dollars


def _parsed(value: object) -> Decimal:
    dollars = _decimal(value)
    if dollars is None or not dollars.is_finite():
        raise ValueError("must be a number of dollars, such as 12.5")
    if dollars > USD_MAX:
        raise ValueError(f"must be <= {USD_MAX}")
    micros = dollars * MICROS
    if micros != micros.to_integral_value():
        raise ValueError(f"must have at most {DECIMALS} decimals")
    return dollars


def parse_dollars(value: object) -> Decimal:
    """Dollars, more than 0: a budget of nothing would be a run that does nothing."""
    dollars = _parsed(value)
    if dollars <= 0:
        raise ValueError("must be > 0 (without it there is no limit)")
    return dollars


def parse_token_price(value: object) -> Decimal:
    """Dollars of a million tokens, from 0."""
    dollars = parse_price(value)
    if dollars > TOKEN_PRICE_MAX:
        raise ValueError(f"must be <= {TOKEN_PRICE_MAX} dollars of a million tokens")
    return dollars


def micros_of(dollars: Decimal) -> int:
    """The same in micro-dollars."""
    return int(dollars * MICROS)


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal | int):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))  # the shortest that is this float: what was written
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return Decimal(value.strip())
    return None


def _whole_number(value: object) -> int:
    # True is an int to Python, and texts come from the environment.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    raise ValueError("must be a whole number")


def _limit_dimension(name: str) -> str:
    if ":" in name:
        raise ValueError("must not contain ':', which ends a dimension's name in a limit key")
    return name


def _secret_url(value: object) -> SecretUrl:
    if isinstance(value, SecretUrl):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value:
        raise ValueError("must not be empty")
    return SecretUrl(value)


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # an int beyond every float
            raise ValueError("must be a number that is not so large") from None
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    raise ValueError("must be a number")


def _shown_name(name: str) -> str:
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise ValueError("must not hold control characters")
    return name


def _provider_name(name: str) -> str:
    if "/" in name:
        raise ValueError("must not contain '/', which ends a provider's name before its model")
    return name


def _model_of_provider(name: str) -> str:
    provider, _, model = name.partition("/")
    if not (provider and model):
        raise ValueError('must be PROVIDER/MODEL, such as "openai/gpt-5"')
    return name


def _base_url(value: object) -> object:
    problem = base_url_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _values(value: object) -> list[object]:
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of values, such as ["a", "b"]')
    return list(value)


def _header(value: object) -> object:
    problem = header_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LENGTH_MAX)]
Dimension = Annotated[Name, BeforeValidator(_limit_dimension)]
Seconds = Annotated[float, Field(gt=0), BeforeValidator(parse_duration)]
SecondsOrZero = Annotated[float, Field(ge=0), BeforeValidator(parse_duration)]
Count = Annotated[int, Field(gt=0, le=COUNT_MAX), BeforeValidator(_whole_number)]
Bytes = Annotated[int, Field(gt=0, le=BYTES_MAX), BeforeValidator(_whole_number)]
Rate = Annotated[float, Field(ge=RATE_MIN, le=RATE_MAX), BeforeValidator(_number)]
Factor = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_number)]
ModelName = Annotated[Name, AfterValidator(_shown_name)]
ProviderName = Annotated[ModelName, BeforeValidator(_provider_name)]
ModelOfProvider = Annotated[Text, AfterValidator(_shown_name), BeforeValidator(_model_of_provider)]
Usd = Annotated[Decimal, BeforeValidator(parse_dollars)]
UsdPrice = Annotated[Decimal, BeforeValidator(parse_token_price)]
Tokens = Annotated[int, Field(gt=0, le=TOKENS_MAX), BeforeValidator(_whole_number)]
BaseUrl = Annotated[str, BeforeValidator(_base_url)]
Truth = Annotated[bool, BeforeValidator(_truth)]
Header = Annotated[str, BeforeValidator(_header)]
Cap = Annotated[int, Field(ge=0, le=COUNT_MAX), BeforeValidator(_whole_number)]
Values = Annotated[list[Any], BeforeValidator(_values)]
StoreUrl = Annotated[
    InstanceOf[SecretUrl], BeforeValidator(_secret_url), PlainSerializer(str, when_used="json")
]


def available_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class RuntimeSettings(_Section):
    """`[runtime]`: one worker process."""

    slots: Count | None = None  # running tasks of all kinds together
    async_slots: Count = 256  # running tasks on the loop; as many as `slots`, if that alone is set
    thread_slots: Count = 32  # running tasks in threads
    #: running tasks in processes of their own
    process_slots: Count = Field(default_factory=available_cores)
    lease_ttl_seconds: Seconds = 30.0  # a dead machine's jobs wait this long
    beat_seconds: Seconds = 10.0  # between two renewals
    grace_seconds: SecondsOrZero = 25.0  # for running tasks, when stopping
    statistics_seconds: SecondsOrZero = 60.0  # between two lines of statistics; 0: none
    preflight_timeout: Seconds = 60.0  # of a preflight, with all its tries

    def slots_by_kind(self) -> dict[str, int]:
        """How many tasks of each kind may run at once; of all kinds together at most `slots`."""
        most, on_loop = self.slots, self.async_slots
        if most is not None and "async_slots" not in self.model_fields_set:
            on_loop = most
        counts = {"async": on_loop, "thread": self.thread_slots, "process": self.process_slots}
        return {kind: count if most is None else min(count, most) for kind, count in counts.items()}

    @model_validator(mode="after")
    def _beats_fit_into_a_lease(self) -> Self:
        # One beat may be lost without losing the lease.
        if self.beat_seconds >= self.lease_ttl_seconds / 2:
            raise PydanticCustomError(
                BEAT_TOO_SLOW,
                "runtime.beat_seconds must be < half of runtime.lease_ttl_seconds",
                {"beat_seconds": self.beat_seconds, "lease_ttl_seconds": self.lease_ttl_seconds},
            )
        return self


class TaskSettings(_Section):
    """`[tasks]`: what a task gets that does not say otherwise."""

    max_attempts: Count = 3  # charged tries of a job; then it ends in error
    timeout: Seconds = 3600.0  # of one attempt
    max_crashes: Count = MAX_CRASHES  # of a job that ran alone; then it ends in error
    give_up_after: Seconds = 86_400.0  # of waiting for an unhealthy provider


class DatasetSettings(_Section):
    """`[datasets]`: where slices are kept."""

    root: Text = "datasets"  # a folder; a relative one lies in the folder of the project


class PriceSettings(_Section):
    """`usd_per_million_tokens` of a model: what its tokens cost."""

    input: UsdPrice  # of a prompt
    output: UsdPrice  # of an answer


class ModelSettings(_Section):
    """`[providers.NAME.models."MODEL"]`: what may never be exceeded, over all its domains."""

    max_parallel: Count | None = None  # requests at once; None: as many as the provider allows
    rpm: Rate | None = None  # requests per minute
    tpm: Rate | None = None  # tokens per minute
    usd_per_million_tokens: PriceSettings | None = None  # None: dollars are not counted


class ProviderSettings(_Section):
    """`[providers.NAME]`: one rate-limited service; its caps hold over all its models."""

    base_url: BaseUrl | None = None  # what the paths of requests are added to
    api: Literal["openai", "anthropic"] | None = None  # its dialect; None: as known of the host
    account_errors: Truth | None = None  # 401, 402, 403 are about the account; None: by dialect
    algorithm: Literal["adaptive", "aimd"] = "adaptive"  # what finds the limit
    max_parallel: Count | None = None
    rpm: Rate | None = None
    tpm: Rate | None = None
    initial_limit: Count | None = None  # of aimd; None: the maximum
    decrease_factor: Factor = 0.75  # of aimd, at a refusal
    successes_until_increase: Count = 25  # of aimd
    cooldown_seconds: SecondsOrZero = 2.0  # of aimd, if the provider does not say how long
    startup_ramp_seconds: SecondsOrZero = 0.0  # of aimd, from 1 to the initial limit
    paid: Truth = False  # its calls cost money: each is journaled, an answer is bought once
    in_doubt: Literal["resend", "hold"] = "resend"  # a paid call of which nobody knows the end
    idempotency_header: Header | None = None  # None: as known of the host; "": none
    redirects: Literal["same-origin", "none", "any"] = "same-origin"  # those that are followed
    reply_deadline_seconds: Seconds = 600.0  # from the permit to the end of the reply's body
    reply_body_bytes_max: Bytes = 64 * 1024 * 1024  # of a body, on the wire and decoded
    reply_header_bytes_max: Bytes = 128 * 1024  # of all headers of a reply
    models: dict[ModelName, ModelSettings] = Field(default_factory=dict)


class SpanBudget(_Section):
    """What may be spent in one span of time; None: as much as is asked for."""

    usd: Usd | None = None  # dollars; needs prices
    tokens: Tokens | None = None  # of prompts and answers


class ScopeBudget(_Section):
    """What may be spent over restarts, in one run, and in all runs of one day of UTC."""

    total: SpanBudget = Field(default_factory=SpanBudget)
    run: SpanBudget = Field(default_factory=SpanBudget)
    day: SpanBudget = Field(default_factory=SpanBudget)


class BudgetSettings(ScopeBudget):
    """`[budget]`: what paid providers may cost, in all and for single names."""

    provider: dict[ProviderName, ScopeBudget] = Field(default_factory=dict)
    model: dict[ModelOfProvider, ScopeBudget] = Field(default_factory=dict)  # PROVIDER/MODEL
    task: dict[Name, ScopeBudget] = Field(default_factory=dict)


class Settings(_Section):
    """Everything that can be set."""

    app: Text | None = None  # a file or `module:attribute`; None: pipeline.py
    store: StoreUrl | None = None  # None: sqlite:///.penstock/APP.db, by the app's name
    durability: Literal["full", "normal"] = "full"  # full survives power loss, normal a crash
    retention: Seconds = 30 * 86_400.0  # of ended jobs
    journal_retention: Seconds | None = None  # of their paid calls; None: as long as the jobs
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings)
    tasks: TaskSettings = Field(default_factory=TaskSettings)
    datasets: DatasetSettings = Field(default_factory=DatasetSettings)
    #: dimension → name → how many at once (0: none); "*" is the default of the dimension
    limits: dict[Dimension, dict[Name, Cap]] = Field(default_factory=dict)
    providers: dict[ProviderName, ProviderSettings] = Field(default_factory=dict)
    budget: BudgetSettings = Field(default_factory=BudgetSettings)
    #: dimension → the values over which work is multiplied, for app.partitions(NAME, of=TYPE)
    partitions: dict[Name, Values] = Field(default_factory=dict)

    def calls_kept(self) -> float:
        """Seconds for which the paid calls of ended jobs are kept."""
        return self.retention if self.journal_retention is None else self.journal_retention

    def caps(self) -> dict[str, int]:
        """The limits by limit key (`host:example.org`, `host:*`)."""
        return {
            f"{dimension}:{name}": count
            for dimension, counts in self.limits.items()
            for name, count in counts.items()
        }
