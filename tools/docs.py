"""Write the generated pages of docs/ from the code they describe; `--check` says which are out of date."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import main as cli
from shiftwork.cli.codes import MEANING as EXIT_CODES
from shiftwork.cli.shell import common_options
from shiftwork.core import alerts, reasons
from shiftwork.core import settings as declared
from shiftwork.core.errors import all_errors
from shiftwork.core.events import every_name
from shiftwork.core.metrics import METRICS, MOST_SERIES
from shiftwork.core.resolve import KEYS, PROFILES, Resolver, flat, load_profile
from shiftwork.core.settings import Settings
from shiftwork.core.settings_meaning import MEANING
from shiftwork.core.states import MEANING as STATE_MEANINGS
from shiftwork.core.states import TRANSITIONS, State
from tools.http_page import http_page

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).resolve().parents[1] / "docs"
ON, OFF = "*on*", "*off*"
DOCUMENTS = tuple(name for name in PROFILES if name != "standard")


SETTINGS_INTRODUCTION = """# Settings

A value is looked up at the task, then its type, the workspace, the profile, and last here. Keys are written
with dots. Groups add up key by key, lists replace each other, and null switches an optional group off. The
profile `standard` is these defaults; the last column names the profiles that differ.

`settings` shows what is in force and where it comes from.

| key | default | meaning | profiles |
|---|---|---|---|"""


def settings_page() -> str:
    """Every setting: what it means, its default, and where a profile differs."""
    lines = [SETTINGS_INTRODUCTION, *(_row(key) for key in KEYS), "", *_type_values()]
    return "\n".join(lines) + "\n"


def _row(key: str) -> str:
    profiles = "; ".join(f"{name} {_shown(value)}" for name, value in _profile_values(key))
    return f"| `{key}` | {_shown(_defaults().get(key, OFF))} | {_explained(key)} | {profiles} |"


def _explained(key: str) -> str:
    text = MEANING[key]
    if reach := declared.REACH.get(key.partition(".")[0]):
        text += " Set for a type or the workspace." if reach == "type" else " Set for the workspace only."
    return text


def _defaults() -> dict[str, Any]:
    return _with_groups(dict(flat(Settings())))


def _with_groups(values: dict[str, Any]) -> dict[str, Any]:
    """An optional group that is on has keys below it and no row of its own."""
    groups = {key.rpartition(".")[0] for key in values} - {""}
    return {**{key: ON for key in KEYS if key in groups}, **values}


def _profile_values(key: str) -> list[tuple[str, Any]]:
    default = _defaults().get(key)
    found = [(name, _with_groups(dict(flat(Resolver(load_profile(name)).settings()))).get(key)) for name in DOCUMENTS]
    # The keys of a group that is off say nothing: the group's own row says that it is off.
    return [(name, value) for name, value in found if value != default and not _is_off(name, key)]


def _is_off(name: str, key: str) -> bool:
    values = dict(flat(Resolver(load_profile(name)).settings()))
    group = key.rpartition(".")[0]
    return bool(group) and group in values and values[group] is None


def _type_values() -> list[str]:
    lines = [
        "## Values for single types in a profile",
        "",
        "| profile | type | key | value |",
        "|---|---|---|---|",
    ]
    for name in DOCUMENTS:
        for type_name in sorted(load_profile(name).types):
            rows = Resolver(load_profile(name)).in_force(type_name)
            lines += [
                f"| {name} | {type_name} | {row.key} | {_shown(row.value)} |"
                for row in rows
                if row.source == f"profile {name}, type {type_name}"
            ]
    return lines


def _shown(value: Any) -> str:
    return value if value in (ON, OFF) else f"`{json.dumps(value)}`"


def states_page() -> str:
    """The states and the one table of moves, drawn and listed."""
    meanings = "\n".join(f"| `{state}` | {STATE_MEANINGS[state]} |" for state in State)
    moves = "\n".join(
        f"    {source} --> {target}: {name}" for (source, name), target in TRANSITIONS.items() if name != "cancel"
    )
    cancels = ", ".join(f"`{source}`" for (source, name) in TRANSITIONS if name == "cancel")
    return (
        "# States\n\nMade from `core/states.py`, like the CHECK in the database and the tests.\n\n"
        f"| state | meaning |\n|---|---|\n{meanings}\n\n"
        f"```mermaid\nstateDiagram-v2\n{moves}\n```\n\n"
        f"`cancel` leads to `cancelled` from {cancels}.\n\n"
        "*Final*: completed, cancelled. *Settled*: dead_lettered and resting failed; they are left by review, rerun or "
        "cancel.\n`created` and the passing `failed` stand in the history, not in the row.\n"
    )


def errors_page() -> str:
    """Every error with its code and how to mend it."""
    rows = [
        f"| `{kind.code}` | `{kind.__name__}` | {kind.mend or '-'} |"
        for kind in sorted(all_errors(), key=lambda k: k.code)
    ]
    return (
        "# Errors\n\nEvery error has a stable `code`, says what happened and where, and how to mend it. An error means "
        "that nothing was changed.\n\n| code | class | how to mend it |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def events_page() -> str:
    """The names events are told under, the reasons failures have, and the alerts there are."""
    names = "\n".join(f"- `{name}`" for name in sorted(every_name()))
    unsafe = ", ".join(f"`{reason}`" for reason in reasons.MEANING if reason in reasons.UNSAFE_SESSION)
    why = "\n".join(f"| `{reason}` | {meaning} |" for reason, meaning in reasons.MEANING.items())
    looks = "\n".join(
        f"| `{name}` | {kind.severity} | {kind.text} | {kind.meaning} |" for name, kind in alerts.KINDS.items()
    )
    return (
        "# Events, reasons and alerts\n\nOne row is written per verb and task, in the transaction of the change; "
        f"`names` says which of these it stands for.\n\n{names}\n\nAn agent may give any reason; these are known:\n\n"
        f"| reason | meaning |\n|---|---|\n{why}\n\nAfter {unsafe} the agent's session is not resumed.\n\n"
        "An alert is written in the transaction of its cause, whose event "
        "is then `alert.raised`, too, and names the kinds in `data.alerts`.\n\n"
        f"| alert | severity | message | meaning |\n|---|---|---|---|\n{looks}\n"
    )


METRICS_INTRODUCTION = """# Metrics

`GET /metrics` tells those of a workspace in the text format of Prometheus, `GET /api/metrics` and `shiftwork metrics`
as JSON and as a table. What is marked *server* is told by `/metrics` alone, and is of the process that answers. Shares
are 0 to 1. At most {most} series of one metric are told apart in a workspace; what comes after them counts as `other`.

| metric | kind | labels | meaning |
|---|---|---|---|
{rows}
"""


def metrics_page() -> str:
    """Every metric, from the catalogue."""
    rows = "\n".join(
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels) or '-'} "
        f"| {metric.meaning}{' *server*' if metric.of_process else ''} |"
        for metric in METRICS.values()
    )
    return METRICS_INTRODUCTION.format(most=MOST_SERIES, rows=rows)


CLI_INTRODUCTION = """# Command line

`shiftwork COMMAND --help` says the same. Every command takes these options, before its name or after it:

| option | environment | meaning |
|---|---|---|
{options}

A task is named by its id in any form (`task_01J…`, the UUID, or an id of your own). Times are ISO-8601, UTC where they
name no zone, or from now: `90s`, `15m`, `2h`, `3d`, `1w`. With `--json` an answer is one JSON document, and `events`
are JSON lines; times are ISO-8601 in UTC. Tables fit the terminal, and stand whole in a pipe; `NO_COLOR` is respected.

An error is one line on stderr, `error: <what> (at <where>). <how to mend it>`, or with `--json` an object with its
[code](errors.md). Where there is no queue, `submit`, `work`, `migrate`, `settings set`, `settings profile` and
`tokens create` make one; all others refuse.

| exit code | meaning |
|---|---|
{codes}
"""


def cli_page() -> str:
    """Every command, from the tree that click runs."""
    common = common_options(environment=True)
    options = "\n".join(f"| `{_flags(o)}` | {f'`{o.envvar}`' if o.envvar else '-'} | {o.help} |" for o in common)
    codes = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODES.items())
    pages = [CLI_INTRODUCTION.format(options=options, codes=codes)]
    root = click.Context(cli, info_name="shiftwork")
    pages += [_command(command, click.Context(command, root, name)) for name, command in cli.commands.items()]
    return "\n".join(pages)


def _command(command: click.Command, context: click.Context) -> str:
    """One command with its options, and those below it."""
    parts = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    usage = " ".join([context.command_path, *(a.make_metavar(context) for a in _arguments(command))])
    lines = [f"## {context.command_path}", "", f"    {usage}", "", "\n\n".join(parts), ""]
    shared = {option.name for option in common_options(environment=False)}
    own = [p for p in command.params if isinstance(p, click.Option) and p.name not in shared]
    if own:
        rows = [f"| `{_flags(option, context)}` | {_option_help(option)} |" for option in own]
        lines += ["| option | meaning |", "|---|---|", *rows, ""]
    below = command.commands if isinstance(command, click.Group) else {}
    return "\n".join([*lines, *(_command(c, click.Context(c, context, name)) for name, c in below.items())])


def _arguments(command: click.Command) -> list[click.Argument]:
    return [param for param in command.params if isinstance(param, click.Argument)]


def _flags(option: click.Option, context: click.Context | None = None) -> str:
    flags = ", ".join(option.opts)
    if option.is_flag:
        return flags
    return f"{flags} {option.make_metavar(context) if context else option.metavar}".replace("|", "\\|")


def _option_help(option: click.Option) -> str:
    default = f" [default: {option.default}]" if option.show_default and not option.is_flag else ""
    return f"{option.help}{default}" + (" Required." if option.required else "")


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/states.md": states_page,
    "reference/errors.md": errors_page,
    "reference/events.md": events_page,
    "reference/metrics.md": metrics_page,
    "reference/cli.md": cli_page,
    "reference/http.md": http_page,
}


def outdated(folder: Path = DOCS) -> list[str]:
    """Names of pages that differ from what the code says."""
    return [name for name, page in PAGES.items() if _read(folder / name) != page()]


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


def write(folder: Path = DOCS) -> list[str]:
    """Write what is out of date and name it."""
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
    names = outdated() if options.check else write()
    verb = "is out of date; run `make docs`" if options.check else "written"
    for name in names:
        print(f"docs/{name} {verb}")
    return 1 if options.check and names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
