# SPDX-License-Identifier: Apache-2.0
"""How is it said what limited a run, and what would help?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.model.run import LimitKind, ModelFigures
from penstock.observe.explain import RunFacts, Share
from penstock.observe.phrases import command, counted

MOST = 0.5  # of the time
BUSY = 0.8  # of the time: a processor that works as much has no more to give to one loop


class Said(msgspec.Struct, frozen=True):
    """What limited a run most, and the one change that would help."""

    sentence: str
    change: str


def name_of(share: Share, facts: RunFacts) -> str:
    """What people call a cause, in a few words."""
    where = _where(share, facts)
    names = {
        LimitKind.SLOTS: f"{where} slots",
        LimitKind.FAIR_ORDER: "fair order",
        LimitKind.KEYED_LIMIT: f"limit {where}",
        LimitKind.ADAPTIVE_LIMIT: f"{where}: adaptive limit",
        LimitKind.LEARNED_RATE: f"{where}: learned rate",
        LimitKind.MAX_PARALLEL: f"{where}: max_parallel",
        LimitKind.RPM: f"{where}: rpm",
        LimitKind.TPM: f"{where}: tpm",
        LimitKind.COOLDOWN: f"{where}: cool-down",
        LimitKind.BUDGET: f"budget {where}",
        LimitKind.LATENCY: f"{where}: replies",
        LimitKind.OWN_CODE: "the tasks' own code",
        LimitKind.DEPENDENCIES: "dependencies",
        LimitKind.DELAYS: "delays and retries",
        LimitKind.ELSEWHERE: "jobs held by other workers",
        LimitKind.SUSPECTS: "jobs run alone after a crash",
        LimitKind.LOST: "jobs held by dead workers",
        LimitKind.PAUSED: "the queue was paused",
        LimitKind.STORE: "the store",
        LimitKind.IDLE: "nothing to do",
    }
    return names[share.kind]


def say(facts: RunFacts) -> Said | None:
    """The binding cause in one sentence, and the one change in another; None: nothing limited."""
    if not facts.shares:
        return None
    share = facts.shares[0]
    if share.kind is LimitKind.STORE and not (facts.ended or facts.doing):
        return None  # it came, found nothing, and left
    if mostly_idle(facts):  # then its part of the whole run says more than of the busy time
        whole = facts.busy_seconds + facts.idle_seconds
        share = msgspec.structs.replace(share, percent=round(100 * share.seconds / whole))
    sentence, change = _WORDS[share.kind](share, facts)
    return Said(sentence, change)


def mostly_idle(facts: RunFacts) -> bool:
    """Was there nothing to do most of the time, as for a daemon between its ticks?"""
    return facts.idle_seconds > MOST * (facts.busy_seconds + facts.idle_seconds)


def _during(share: Share) -> str:
    return f"for {share.percent}% of the run"


def _where(share: Share, facts: RunFacts) -> str:
    """A model with its domain, if it has but one."""
    model = facts.model(share.where)
    if model is None or len(model.domains) != 1 or model.domains == ("http",):
        return share.where
    return f"{share.where} {model.domains[0]}"


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _model(share: Share, facts: RunFacts) -> ModelFigures:
    provider, _, model = share.where.partition("/")
    return facts.model(share.where) or ModelFigures(provider=provider, model=model or "*")


def _refusals(model: ModelFigures) -> str:
    return f"{model.refused:,} of {counted(model.requests, 'request')}"


def _setting(model: ModelFigures, name: str) -> str:
    """Where a cap of a provider is set."""
    return f"providers.{model.provider}.{name}"


# ── One of each kind: the sentence, and the change ────────────────────────────────────────────


def _slots(share: Share, facts: RunFacts) -> tuple[str, str]:
    count, setting = facts.slots.get(share.where, 0), f"runtime.{share.where}_slots"
    sentence = (
        f"All {counted(count, f'{share.where} slot')} were taken {_during(share)}, while other "
        "jobs were ready."
    )
    each = count // max(facts.at_once, 1)
    spent = sum(one.seconds for one in facts.doing)
    own = sum(one.seconds for one in facts.doing if one.kind is LimitKind.OWN_CODE)
    if spent and own < MOST * spent:
        return sentence, (
            f"Raise {setting} from {each:,}: whoever held a slot waited for replies "
            f"{1 - own / spent:.0%} of the time, which costs no CPU."
        )
    crowded = _crowded(facts)
    if crowded is not None and share.where != "process":
        return sentence, crowded
    if share.where == "process":
        return sentence, (
            f"Give it more cores, and raise {setting} from {each:,} to as many: the tasks' own "
            "code took all the time."
        )
    return sentence, (
        f"Raise {setting} from {each:,}: the tasks' own code took the time, and the processor had "
        f"{_idle_cpu(facts)} to spare."
    )


def _crowded(facts: RunFacts) -> str | None:
    """What to change if the loops themselves could do no more."""
    stored = sum(one.seconds for one in facts.shares if one.kind is LimitKind.STORE)
    whole = facts.busy_seconds - stored
    if not whole > 0:
        return None
    cpu, late = facts.cpu_seconds / whole, facts.late_seconds / whole
    if cpu >= BUSY:
        return (
            f"Add worker processes (--processes {2 * facts.at_once}): each kept "
            f"a processor busy {min(cpu, 1.0):.0%} of the time, and more slots would not help."
        )
    if late >= MOST:
        return (
            f"Do not block the event loop, which stood still {min(late, 1.0):.0%} of the time: use "
            "await, or write the task as `def`, which runs in a thread."
        )
    return None


def _idle_cpu(facts: RunFacts) -> str:
    whole = facts.busy_seconds + facts.idle_seconds
    return f"{max(0.0, 1 - facts.cpu_seconds / whole) if whole else 1.0:.0%}"


def _fair_order(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Groups that had their share had to wait for others {_during(share)}.",
        "Give the groups that matter a larger weight, or put the jobs that wait into more groups.",
    )


def _keyed(share: Share, facts: RunFacts) -> tuple[str, str]:
    level = 0 if share.level is None else round(share.level / max(facts.at_once, 1))
    return (
        f"The limit {share.where!r} of {level:,} was full {_during(share)}, while slots were free.",
        f"Raise it if what it protects can take more: "
        f"{command('queue', 'limit', share.where, str(2 * max(level, 1)))}",
    )


def _adaptive(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    where, level = _where(share, facts), f"{round(model.limit or share.level or 0):,}"
    sentence = f"{where} sat at its adaptive limit of {level} {_during(share)}"
    if model.refused:
        at = "" if model.ceiling is None else f" at {round(model.ceiling) + 1:,}"
        return (
            f"{sentence}; the provider answered 429{at} ({_refusals(model)}).",
            f"Ask {model.provider} for a higher limit than {_learned(model, level)} at once, or "
            "send a part of the work to another model: more slots or workers would not help.",
        )
    return (
        f"{sentence}, and was never refused.",
        f"Let it run on: the limit had grown to {model.limit_reached:,} and was still looking for "
        f"the provider's own, which the next run begins with.",
    )


def _learned(model: ModelFigures, level: str) -> str:
    """How many at once a provider takes, as was learned last."""
    return level if model.ceiling is None else f"{round(model.ceiling):,}"


def _rate(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    rate = "" if model.rate is None else f" of {model.rate:.3g} a second"
    return (
        f"{_where(share, facts)} was kept to its learned rate{rate} {_during(share)}; the provider "
        f"refused {_refusals(model)}.",
        f"Ask {model.provider} for a higher rate, or send a part of the work to another model: "
        "more slots or workers would not help.",
    )


def _max_parallel(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    level = _number(share.level or model.limit_max)
    return (
        f"{_where(share, facts)} had as many requests in flight as its max_parallel of {level} "
        f"allows {_during(share)}.",
        f"Raise {_setting(model, 'max_parallel')} from {level}: the provider refused "
        f"{_refusals(model)}.",
    )


def _per_minute(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    name = share.kind.value
    what = "requests" if share.kind is LimitKind.RPM else "tokens"
    level = _number(share.level)
    return (
        f"{_where(share, facts)} had used up its {level} {what} a minute ({name}) "
        f"{_during(share)}.",
        f"Raise {_setting(model, name)} from {level} if your account allows more, or make "
        f"{'fewer' if what == 'requests' else 'smaller'} requests: "
        f"{_number(model.tokens / model.requests if model.requests else None)} tokens each now.",
    )


def _cooldown(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    ill = model.failed > model.refused
    vain = f"failed {model.failed:,}" if ill else f"refused {model.refused:,}"
    change = (
        f"Find out what is wrong with {model.provider}, or send the work elsewhere."
        if ill
        else f"Set {_setting(model, 'rpm')} or max_parallel below what {model.provider} grants "
        "you, so that it is not refused and need not pause."
    )
    return (
        f"{_where(share, facts)} was in a cool-down {_during(share)}; the provider {vain} of "
        f"{counted(model.requests, 'request')}.",
        change,
    )


def _budget(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"{share.where} was used up {_during(share)}.",
        f"Raise {share.where} in penstock.toml, or wait until it opens again.",
    )


def _latency(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    seconds = sum(
        one.seconds
        for one in facts.doing
        if one.kind is LimitKind.LATENCY and one.where == share.where
    )
    each = f"{seconds / model.requests:.3g} s each" if model.requests else "long"
    return (
        f"Jobs waited for replies of {_where(share, facts)} {_during(share)}; these took {each}, "
        "and nothing else was ready.",
        f"Have more in flight at once: at most {model.in_flight_max:,} of {model.limit_max:,} were "
        "asked for; split long jobs, or choose a quicker model.",
    )


def _own_code(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"The tasks' own code ran {_during(share)}, {_few(facts.running_mean)} at once, and "
        "nothing else was ready.",
        _crowded(facts)
        or f"Make the tasks' code quicker, or split it into more jobs: {_free(facts)} were free.",
    )


def _dependencies(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Jobs waited for others to end {_during(share)}, while {_few(facts.running_mean)} ran at "
        f"once and {_free(facts)} were free.",
        "Let jobs wait only for those whose results they need (`after`; in a build "
        "`--eager`), or make those on the longest chain quicker: more slots or workers would not "
        "help.",
    )


def _few(count: float) -> str:
    """A mean in two digits, or in whole ones."""
    return f"{count:.2g}" if count < 10 else f"{count:,.0f}"


def _free(facts: RunFacts) -> str:
    slots = sum(facts.slots.values())
    return f"{max(0, slots - round(facts.running_mean)):,} of {counted(slots, 'slot')}"


def _put_back(facts: RunFacts) -> str:
    count = facts.put_back
    return f", and {count:,} {'was' if count == 1 else 'were'} refused" if count else ""


def _delays(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"What was left was for later, or to be tried again, {_during(share)}; "
        f"{counted(facts.retries, 'attempt')} had failed{_put_back(facts)}.",
        "Look at why they failed (penstock queue list --state error), or enqueue with less delay.",
    )


def _elsewhere(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Other workers held what was left {_during(share)}.",
        "Split the longest jobs: some workers had nothing to do while others finished theirs.",
    )


def _suspects(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Jobs that ran when a worker died were run again alone, one after the other, "
        f"{_during(share)}.",
        "Find out what killed the worker (the log names the signal; memory is the usual reason): "
        "without a crash nothing has to run alone.",
    )


def _lost(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Workers that were gone without a word held what was left {_during(share)}: nobody else "
        "could have it before their leases ended.",
        "Stop a run with Ctrl-C or SIGTERM, which gives its jobs back at once; "
        "runtime.lease_ttl_seconds is how long those of a dead machine wait.",
    )


def _paused(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (f"The queue was paused {_during(share)}.", command("queue", "resume"))


def _store(share: Share, facts: RunFacts) -> tuple[str, str]:
    rate = facts.ended / facts.wall_seconds if facts.wall_seconds else 0.0
    return (
        f"Workers waited for the store {_during(share)}, at {rate:,.0f} jobs a second.",
        "Do more in each job, or give the store a faster disk; with many workers a server of "
        "PostgreSQL bears more than a file.",
    )


def _idle(share: Share, facts: RunFacts) -> tuple[str, str]:
    return ("There was nothing to do.", "Enqueue more work.")


_WORDS: dict[LimitKind, Callable[[Share, RunFacts], tuple[str, str]]] = {
    LimitKind.SLOTS: _slots,
    LimitKind.FAIR_ORDER: _fair_order,
    LimitKind.KEYED_LIMIT: _keyed,
    LimitKind.ADAPTIVE_LIMIT: _adaptive,
    LimitKind.LEARNED_RATE: _rate,
    LimitKind.MAX_PARALLEL: _max_parallel,
    LimitKind.RPM: _per_minute,
    LimitKind.TPM: _per_minute,
    LimitKind.COOLDOWN: _cooldown,
    LimitKind.BUDGET: _budget,
    LimitKind.LATENCY: _latency,
    LimitKind.OWN_CODE: _own_code,
    LimitKind.DEPENDENCIES: _dependencies,
    LimitKind.DELAYS: _delays,
    LimitKind.ELSEWHERE: _elsewhere,
    LimitKind.SUSPECTS: _suspects,
    LimitKind.LOST: _lost,
    LimitKind.PAUSED: _paused,
    LimitKind.STORE: _store,
    LimitKind.IDLE: _idle,
}


def unheard_words(facts: RunFacts) -> str | None:
    """Who is gone without a last word, and how much of what they did is not known."""
    if not facts.unheard:
        return None
    whose = "it" if facts.unheard == 1 else "each of them"
    return (
        f"{counted(facts.unheard, 'worker')} ended without a last word, killed most likely: what "
        f"{whose} did in its last {max(facts.unheard_seconds, 1):,.0f} s or so is not counted here."
    )


def run_state(facts: RunFacts) -> str:
    """How a run that is over has ended."""
    return "ended without a word" if facts.unheard == facts.workers else "over"
