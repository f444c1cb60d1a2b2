"""Generates the reference pages of docs/ from the code; `--check` lists those that are out of date."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shiftwork.cli import main as cli
from shiftwork.cli.exit_codes import MEANING as EXIT_CODES
from shiftwork.cli.shell import common_options
from shiftwork.model import reasons
from shiftwork.model.errors import all_errors
from shiftwork.model.events import every_name
from shiftwork.model.states import MEANING as STATE_MEANINGS
from shiftwork.model.states import TRANSITIONS, State
from shiftwork.observe import alert_kinds
from shiftwork.observe.metric_catalogue import MAX_SERIES, METRICS
from tools import blocking_stub
from tools.http_page import http_page
from tools.python_page import python_page
from tools.settings_page import settings_page
from tools.versions_page import versions_page

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).resolve().parents[1] / "docs"


def states_page() -> str:
    """Return the states and the table of transitions, drawn and listed."""
    meanings = "\n".join(f"| `{state}` | {STATE_MEANINGS[state]} |" for state in State)
    moves = "\n".join(
        f"    {source} --> {target}: {name}" for (source, name), target in TRANSITIONS.items() if name != "cancel"
    )
    cancels = ", ".join(f"`{source}`" for (source, name) in TRANSITIONS if name == "cancel")
    return (
        "# States\n\nThis page is generated from `model/states.py`, and so are the CHECK constraint in the database and"
        "\nthe tests.\n\n"
        f"| state | meaning |\n|---|---|\n{meanings}\n\n"
        f"```mermaid\nstateDiagram-v2\n{moves}\n```\n\n"
        f"{_filled(f'`cancel` leads to `cancelled` from {cancels}.')}\n\n"
        "*Final* states: completed, cancelled. *Settled* states: dead_lettered, and failed without a retry;\n"
        "a review, a rerun or a cancellation leaves them. `created`, and `failed` before a retry, appear only\n"
        "in the history, not in the row.\n"
    )


def errors_page() -> str:
    """Return every error with its code and its hint."""
    rows = [
        f"| `{kind.code}` | `{kind.__name__}` | {kind.hint or '-'} |"
        for kind in sorted(all_errors(), key=lambda k: k.code)
    ]
    return (
        "# Errors\n\nEvery error has a stable `code`, a description, a place, and a hint. If an operation raises"
        "\nan error, it has changed nothing.\n\n| code | class | hint |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def events_page() -> str:
    """Return the names of events, the reasons of failures, and the kinds of alerts."""
    names = "\n".join(f"- `{name}`" for name in sorted(every_name()))
    unsafe = ", ".join(f"`{reason}`" for reason in reasons.MEANING if reason in reasons.UNSAFE_SESSION)
    why = "\n".join(f"| `{reason}` | {meaning} |" for reason, meaning in reasons.MEANING.items())
    looks = "\n".join(
        f"| `{name}` | {kind.severity} | {kind.text} | {kind.meaning} |" for name, kind in alert_kinds.KINDS.items()
    )
    return (
        "# Events, reasons and alerts\n\nEach operation writes one row per task, in the transaction of the "
        f"change.\nIts `names` are among these:\n\n{names}\n\nAn agent may give any reason. The queue knows these:\n\n"
        f"| reason | meaning |\n|---|---|\n{why}\n\nThe agent's session is not resumed after\n{unsafe}.\n\n"
        "An alert is written in the transaction of its cause. The event of the cause is then also named\n"
        "`alert.raised`, and lists the kinds in `data.alerts`.\n\n"
        f"| alert | severity | message | meaning |\n|---|---|---|---|\n{looks}\n"
    )


METRICS_INTRODUCTION = """# Metrics

`GET /metrics` exports the metrics of a workspace in the text format of Prometheus. `GET /api/metrics`
returns them as JSON, `shiftwork metrics` prints them as a table. Metrics marked *server* are in
`/metrics` only, and belong to the process that answers. Shares are 0 to 1. A workspace has at most
{most} series of one metric; further ones are counted as `other`.

| metric | kind | labels | meaning |
|---|---|---|---|
{rows}
"""


def metrics_page() -> str:
    """Return every metric of the catalogue."""
    rows = "\n".join(
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels) or '-'} "
        f"| {metric.meaning}{' *server*' if metric.of_process else ''} |"
        for metric in METRICS.values()
    )
    return METRICS_INTRODUCTION.format(most=MAX_SERIES, rows=rows)


CLI_INTRODUCTION = """# Command line

`shiftwork COMMAND --help` prints the same. Every command takes these options, before or after its
name:

| option | environment | meaning |
|---|---|---|
{options}

Name a task by its id in any form (`task_01J…`, the UUID, or your own id). Times are ISO 8601, in UTC
if they have no zone, or relative to now: `90s`, `15m`, `2h`, `3d`, `1w`. With `--json` an answer is
one JSON document, `events` are JSON lines, and times are ISO 8601 in UTC. Tables fit the terminal,
and are not cut in a pipe. `NO_COLOR` is respected.

An error is one line on stderr, `error: <what> (at <where>). <hint>`, or with `--json` an object with
its [code](errors.md). If there is no queue, `submit`, `work`, `migrate`, `settings set`,
`settings profile` and `tokens create` create one; all other commands fail.

| exit code | meaning |
|---|---|
{codes}

| about | commands |
|---|---|
{commands}
"""


def cli_page() -> str:
    """Return every command of the tree that click runs."""
    common = common_options(environment=True)
    options = "\n".join(f"| `{_flags(o)}` | {f'`{o.envvar}`' if o.envvar else '-'} | {o.help} |" for o in common)
    codes = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODES.items())
    root = click.Context(cli, info_name="shiftwork")
    commands = _below(cli, root)
    titles = cli.sections(list(commands)).items()
    listed = "\n".join(f"| {title} | {', '.join(map(_link, names))} |" for title, names in titles if names)
    pages = [CLI_INTRODUCTION.format(options=options, codes=codes, commands=listed)]
    pages += [_command(command, click.Context(command, root, name)) for name, command in commands.items()]
    return "\n".join(pages)


def _link(name: str) -> str:
    return f"[`{name}`](#shiftwork-{name})"


def _command(command: click.Command, context: click.Context) -> str:
    """Return one command with its options, and its subcommands."""
    parts = [_filled(part) for part in (command.help or "").split("\n\n")]
    usage = " ".join([context.command_path, *(a.make_metavar(context) for a in _arguments(command))])
    lines = [f"## {context.command_path}", "", f"    {usage}", "", "\n\n".join(parts), ""]
    shared = {option.name for option in common_options(environment=False)}
    own = [p for p in command.params if isinstance(p, click.Option) and p.name not in shared]
    if own:
        rows = [f"| `{_flags(option, context)}` | {_option_help(option)} |" for option in own]
        lines += ["| option | meaning |", "|---|---|", *rows, ""]
    below = _below(command, context) if isinstance(command, click.Group) else {}
    return "\n".join([*lines, *(_command(c, click.Context(c, context, name)) for name, c in below.items())])


def _below(group: click.Group, context: click.Context) -> dict[str, click.Command]:
    """Return the commands of a group, including those generated from declarations."""
    return {name: found for name in group.list_commands(context) if (found := group.get_command(context, name))}


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)


def _arguments(command: click.Command) -> list[click.Argument]:
    return [param for param in command.params if isinstance(param, click.Argument)]


def _flags(option: click.Option, context: click.Context | None = None) -> str:
    flags = ", ".join(option.opts)
    if option.is_flag:
        return flags
    return f"{flags} {option.make_metavar(context) if context else option.metavar}".replace("|", "\\|")


def _option_help(option: click.Option) -> str:
    default = f"[default: {option.default}]" if option.show_default and not option.is_flag else None
    return " ".join(part for part in (option.help, default, "Required." if option.required else None) if part)


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/states.md": states_page,
    "reference/errors.md": errors_page,
    "reference/events.md": events_page,
    "reference/metrics.md": metrics_page,
    "reference/cli.md": cli_page,
    "reference/http.md": http_page,
    "reference/python.md": python_page,
    "reference/versions.md": versions_page,
}


def outdated(folder: Path = DOCS) -> list[str]:
    """Return the names of pages that differ from the code."""
    return [name for name, page in PAGES.items() if _read(folder / name) != page()]


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


def write(folder: Path = DOCS) -> list[str]:
    """Write the pages that are out of date and return their names."""
    names = outdated(folder)
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PAGES[name](), encoding="utf-8")
    return names


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    options = parser.parse_args(arguments)
    names = [f"docs/{name}" for name in (outdated() if options.check else write())]
    if _read(blocking_stub.STUB) != blocking_stub.blocking_stub():
        names.append(f"src/shiftwork/client/{blocking_stub.STUB.name}")
        if not options.check:
            blocking_stub.write()
    verb = "is out of date; run `make docs`" if options.check else "written"
    for name in names:
        print(f"{name} {verb}")
    return 1 if options.check and names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
