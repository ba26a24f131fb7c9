# SPDX-License-Identifier: Apache-2.0
"""The command line `penstock`: its commands, global options, error messages and exit codes.

0 success, also a clean stop by SIGTERM · 1 the work or the store failed · 2 wrong usage or
definition · 3 a preflight failed · 4 a budget is used up · 130 interrupt.
"""

from __future__ import annotations

import errno
import re
import sys
from typing import Annotated

import typer

from penstock.cli.lazy_command import CommandTable, Invocation, LazyGroup, import_typed
from penstock.cli.other_tools import own_command, own_option
from penstock.errors import PenstockError, UsageError
from penstock.logs import LogFormat, LogLevel, set_up_logging
from penstock.output_queue import end_output
from penstock.terminal_text import (
    escape_unencodable_output,
    one_line,
    open_missing_streams,
    redirect_to_devnull,
    say,
    warn,
    warn_of_traceback,
    warn_sentence,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


#: Global options may stand anywhere; those with True take a value.
_GLOBAL_OPTIONS = {"--debug": False, "--log-level": True, "--log-format": True}
_THEIR_WORDS = (
    ("Input should be a valid integer, unable to parse string as an integer", "a whole number"),
    ("Input should be greater than or equal to", "at least"),
    ("Input should be less than or equal to", "at most"),
    ("Value error, ", ""),
)
_NO_COMMAND = re.compile(r"No such command '([^']+)'")
_TYPER_USAGE_ERROR = typer.BadParameter.__mro__[1]  # typer exports only this descendant of it


COMMANDS: CommandTable = {
    "run": (
        "penstock.cli.commands.run:run_daemon",
        "Run the preflights, then the schedules and the queue, until it is stopped.",
    ),
    "plan": (
        "penstock.cli.commands.plan:plan",
        "Print what a build would do: levels, counts, what is skipped and why.",
    ),
    "build": (
        "penstock.cli.commands.build:build",
        "Build slices of datasets, with all that they need; what is up to date is left alone.",
    ),
    "init": (
        "penstock.cli.commands.init:init",
        "Write a small working project and say what to type next.",
    ),
    "demo": (
        "penstock.cli.demo.command:demo",
        "See a run meet 429s, die by kill -9, and go on; offline, in under a minute.",
    ),
    "why": (
        "penstock.cli.commands.why:why",
        "Say why a job, schedule or slice is not done, what lets it go on, and which command "
        "would.",
    ),
    "providers": (
        "penstock.cli.commands.providers:providers",
        "Show the limits of providers, as running workers see them and as learned, and what was "
        "spent.",
    ),
    "explain": (
        "penstock.cli.commands.explain:explain",
        "Say what limited a run, in percent of its time, and the one change that would help most.",
    ),
    "report": (
        "penstock.cli.commands.report:report",
        "Show what a run has done: jobs by end, rate, requests, refusals, and what was paid.",
    ),
    "runs": (
        "penstock.cli.commands.runs:runs",
        "List runs, the last one first: id, begin, duration, state, jobs by end, what was spent.",
    ),
    "calls": (
        "penstock.cli.commands.calls:calls",
        "List what was bought: provider, model, when, tokens, money, and how each call ended.",
    ),
    "results": (
        "penstock.cli.commands.results:results",
        "Export what the done jobs of a task returned, in the order of their ends.",
    ),
    "doctor": (
        "penstock.cli.commands.doctor:doctor",
        "Check the machine, the settings, the app and the store; say how to fix what is wrong.",
    ),
    "backup": (
        "penstock.cli.commands.backup:backup",
        "Write a consistent copy of the store to a file, while workers run.",
    ),
    "restore": (
        "penstock.cli.commands.backup:restore",
        "Put a backup in the place of the store; what was there is kept beside it.",
    ),
    "queue": (
        "penstock.cli.commands.queue:commands",
        "Accept jobs, work on them, look at them.",
    ),
    "schedule": (
        "penstock.cli.commands.schedule:commands",
        "Look at units of schedules, pause and resume them, let them tick now, reset cursors.",
    ),
    "budget": (
        "penstock.cli.commands.budget:commands",
        "Look at budgets, and let totals begin anew.",
    ),
    "app": (
        "penstock.cli.commands.app:commands",
        "Look at the apps that share a store, and rename them.",
    ),
    "config": ("penstock.cli.commands.config:commands", "Look at the settings."),
    "dataset": ("penstock.cli.commands.dataset:commands", "Look at what has been built."),
    "table": ("penstock.cli.commands.table:commands", "Generate tables and look at them."),
}


class _Commands(LazyGroup):
    """Turns Ctrl-C into an abort; typer would end silently."""

    table = COMMANDS

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    help="A durable job queue for work that calls rate-limited services.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least level of log lines.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="How log lines look, on stderr.")
    ] = LogFormat.TEXT,
    _version_wanted: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    set_up_logging(log_level.value, log_format.value)
    context.obj = Invocation(debug, log_level.value, log_format.value)


def import_command(arguments: list[str]) -> None:
    """Import the modules of the command that was typed, so that none is imported while it runs."""
    import_typed(COMMANDS, arguments)


def run(arguments: list[str] | None = None) -> None:
    """The console script: run a command, print an error as one sentence, exit with a code."""
    open_missing_streams()
    escape_unencodable_output()
    typed = sys.argv[1:] if arguments is None else arguments
    code = _run(_globals_first(typed), debug="--debug" in typed)
    end_output()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # or the interpreter would fail over it again, and end with 120
            redirect_to_devnull(stream)
        except ValueError:
            continue
    sys.exit(code)


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        warn("Interrupted.")
        return EXIT_INTERRUPTED
    except SystemExit:
        return 0  # how typer ends when the reader of its help has left
    except Exception as error:
        if debug and not isinstance(error, _TYPER_USAGE_ERROR):
            import traceback

            warn_of_traceback(traceback.format_exc())
        return _print_error(error)
    return code if isinstance(code, int) else 0


def _print_error(error: Exception) -> int:
    """Print an error, and return the exit code for it."""
    if isinstance(error, PenstockError):
        for line in str(error).replace("\n- ", "\0- ").split("\0"):  # several problems: a line each
            warn_sentence(one_line(line))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    if isinstance(error, _TYPER_USAGE_ERROR):
        _print_usage_error(error)
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        warn("No more files can be opened. Raise the limit first, for example 'ulimit -n 1024'.")
        return EXIT_FAILED
    text = one_line(f"{type(error).__name__}: {error}".rstrip(": ."))
    warn_sentence(f"{text}. This is our bug: run with --debug, and report what it prints.")
    return EXIT_FAILED


def _print_usage_error(error: Exception) -> None:
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "penstock"
    message = str(getattr(error, "format_message", error.__str__)())
    if "\n" in message:  # no command was given: the message is the help
        warn(message)
        return
    said = _own_name(error, context) or one_line(_plain(message))
    warn_sentence(f"{said}{'' if said.endswith(('.', '?')) else '.'} See '{command} --help'.")


def _plain(message: str) -> str:
    """What a parser says of a value, in our words."""
    for theirs, ours in _THEIR_WORDS:
        message = message.replace(theirs, ours)
    return message


def _own_name(error: Exception, context: typer.Context | None) -> str | None:
    """A sentence with our name of what somebody has typed as other tools have it."""
    if context is None:
        return None
    typed = getattr(error, "option_name", None)
    if isinstance(typed, str):
        known = {name for one in context.command.params for name in one.opts}
        own = own_option(typed, known)
        return None if own is None else f"There is no option {one_line(typed)}; here it is {own}."
    found = _NO_COMMAND.match(str(error))
    if found is None:
        return None
    from penstock.cli.commands import queue

    below = context.command_path.partition(" ")[2]
    own = own_command(found[1], below, queue.COMMANDS)
    return (
        None if own is None else f"There is no command {found[1]!r}; here it is 'penstock {own}'."
    )


def _globals_first(arguments: list[str]) -> list[str]:
    """Move global options to the front, so that they may be written after a command as well."""
    first, rest, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            rest += [argument, *left]
            break
        takes_value = _GLOBAL_OPTIONS.get(argument.partition("=")[0])
        if takes_value is None:
            rest.append(argument)
            continue
        first.append(argument)
        if takes_value and "=" not in argument and left:
            first.append(left.pop(0))
    return first + rest


if __name__ == "__main__":
    run()
