"""Commands that set the queue up: `settings`, `migrate`, `config`, `completion`, `version`."""

from __future__ import annotations

import asyncio
import functools
import json
import platform
from typing import TYPE_CHECKING, Any

import click

from shiftwork import config
from shiftwork.cli import params, printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.groups import Group
from shiftwork.cli.shell import Answer, Command, Shell, current, refuse_absent, with_queue
from shiftwork.model.errors import StoreNeedsMigration, UnknownSetting
from shiftwork.settings.resolve import KEYS, nearest

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.settings.model import InForce
    from shiftwork.store.missing_migrations import Lacking


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def settings(context: click.Context) -> Answer:
    """Show and change settings. Without a subcommand: all in force."""
    return context.invoke(show_settings, keys=()) if context.invoked_subcommand is None else None


@settings.command("show")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--type", "kind", help="Show them for tasks of this type.")
@with_queue()
async def show_settings(shell: Shell, queue: AnyQueue, *, keys: tuple[str, ...], kind: str | None = None) -> None:
    """Show every setting in force and its source, or those under the given keys."""
    _table(shell, [row for key in keys or [""] for row in _under(await queue.settings.list(kind), key)])


def _under(found: list[InForce], key: str) -> list[InForce]:
    """A key itself, or all keys of a group."""
    rows = [row for row in found if not key or row.key == key or row.key.startswith(f"{key}.")]
    if not rows:
        off = [row for row in found if key.startswith(f"{row.key}.") and row.value is None]
        if key in KEYS and off:
            return off
        near = nearest(key)
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise UnknownSetting(f"There is no setting `{key}`{hint}", where=key, nearest=near)
    return rows


def _table(shell: Shell, rows: list[InForce]) -> None:
    def text() -> None:
        columns = ["key", "value", "from", "meaning"]
        printing.table(columns, [(r.key, json.dumps(r.value), r.source, r.meaning) for r in rows])

    shell.answer(rows, text)


@settings.command("set", context_settings={"ignore_unknown_options": True})  # a value may be -1
@click.argument("key")
@click.argument("value", type=params.word_or_json)
@click.option("--type", "kind", help="For tasks of this type alone.")
@with_queue(create=True)
async def set_(shell: Shell, queue: AnyQueue, *, key: str, value: Any, kind: str | None) -> None:
    """Set one KEY to VALUE: JSON, or a plain word. In force at once, without a restart."""
    _table(shell, _under(await queue.settings.set(key, value, kind), key))


@settings.command()
@click.argument("key")
@click.option("--type", "kind", help="For tasks of this type alone.")
@with_queue()
async def unset(shell: Shell, queue: AnyQueue, *, key: str, kind: str | None) -> None:
    """Remove the value of a KEY, so that the level above decides."""
    _under(await queue.settings.list(kind), key)  # an unknown key is refused before anything is done
    _table(shell, _under(await queue.settings.unset(key, kind), key))


@settings.command()
@click.argument("name")
@with_queue(create=True)
async def profile(shell: Shell, queue: AnyQueue, *, name: str) -> None:
    """Configure the workspace as one of the documents describes it."""
    await queue.settings.use_profile(name)
    shell.answer({"workspace": queue.workspace, "profile": name}, lambda: click.echo(f"profile {name}"))


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to do.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what each migration would do.")
@click.option("--sql", is_flag=True, help="Change nothing; print the SQL, for psql or sqlite3.")
@click.option(
    "--contract", is_flag=True, help="Also apply changes that older versions cannot work with: stop those first."
)
def migrate(*, check: bool, dry_run: bool, sql: bool, contract: bool) -> Answer:
    """Create the queue, or bring its schema up to date.

    A new version works alongside the previous one. When no process of the older version runs any more, --contract
    completes the upgrade.
    """
    shell = current()
    shell.refuse_server()
    if check + dry_run + sql > 1:
        raise click.UsageError("--check, --dry-run and --sql exclude each other.")
    from shiftwork.databases.map_file import addresses  # noqa: PLC0415  # no store for `--help`

    answer: Answer = None
    for address in addresses(shell.store):
        shell.store = address
        answer = _migrate(shell, check=check, dry_run=dry_run, sql=sql, contract=contract) or answer
    return answer


def _migrate(shell: Shell, *, check: bool, dry_run: bool, sql: bool, contract: bool) -> Answer:
    """Migrate one database; those of a map run one after the other."""
    if sql or dry_run:
        lacking = asyncio.run(_pending(shell, contract=contract))
        (_print_script if sql else _print_effects)(shell, lacking)
        return None
    try:
        schema, left = asyncio.run(_schema(shell, check=check, contract=contract))
    except StoreNeedsMigration as error:
        fields = {"up_to_date": False, "what": error.what, "hint": error.hint}
        shell.answer(fields, functools.partial(click.echo, f"{error.what}. {error.hint}"))
        return ExitCode.FAILED
    text = f"The schema is up to date: {schema}"
    if left:
        text += f"\nTo apply when no older version runs any more: {', '.join(left)}. Then: shiftwork migrate --contract"
    shell.answer({"up_to_date": True, "schema": schema, "contracts": left}, lambda: click.echo(text))
    return None


async def _pending(shell: Shell, *, contract: bool) -> Lacking:
    from shiftwork.store import missing_migrations  # noqa: PLC0415  # no store for `--help`

    return await missing_migrations.look(shell.store, contract=contract)


def _print_script(shell: Shell, lacking: Lacking) -> None:
    shell.answer({"sql": lacking.script}, lambda: click.echo(lacking.script, nl=False))


def _print_effects(shell: Shell, lacking: Lacking) -> None:
    from shiftwork.store.missing_migrations import effect  # noqa: PLC0415  # no store for `--help`

    effects = [effect(migration) for migration in lacking.needed]
    rows = [(each.migration, *(", ".join(names) for names in each[1:])) for each in effects]
    shell.answer(
        effects,
        lambda: printing.table(["migration", "creates", "changes", "indexes"], rows, "the schema is up to date"),
    )


async def _schema(shell: Shell, *, check: bool, contract: bool) -> tuple[str, list[str]]:
    """The newest migration, and the contracts that were not applied."""
    from shiftwork.store import migrate, open_store  # noqa: PLC0415  # no store for `--help`

    if check:
        refuse_absent(shell.store)
        migrate.refuse_unmigrated((await _pending(shell, contract=contract)).needed)
    else:
        await (await shell.open_database(create=True)).close()
        if contract:
            await (await open_store.open_store(shell.store, migrate_schema="contract")).close()
    left = (await _pending(shell, contract=True)).needed
    return migrate.sources()[-1].title, [migration.title for migration in left]


@click.command("config", cls=Command)
def show_config() -> None:
    """Show which queue is used and why: an option, the environment, shiftwork.toml or the default."""
    shell = current()
    store, workspace, token = shell.address
    file = config.nearest()
    read = "read" if store.source in {str(file), config.DEFAULT} else f"not used: {store.source} names the store"
    rows = [
        ("store", config.without_password(shell.store), store.source),
        ("workspace", workspace.value or "default", workspace.source),
        ("token", "set" if token.value else None, token.source if token.value else "-"),
        ("file", None if file is None else str(file), "-" if file is None else read),
    ]
    answer = {name: {"value": value, "source": source} for name, value, source in rows}
    shell.answer(answer, lambda: printing.table(["key", "value", "from"], rows))


VERSION_HELP = "Show the version and exit."


def show_version(context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's signature
    """The option `--version`."""
    if value and not context.resilient_parsing:
        _show_version()
        context.exit()


@click.command(cls=Command)
def version() -> None:
    """Show the version of this program."""
    _show_version()


def _show_version() -> None:
    from shiftwork import __version__  # noqa: PLC0415  # the package is still being imported when this module is

    known: dict[str, Any] = {"shiftwork": __version__, "python": platform.python_version()}
    current().answer(known, lambda: click.echo(f"shiftwork {__version__} (Python {known['python']})"))


@click.command(cls=Command)
@click.argument("kind", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(kind: str) -> None:
    """Print the script that completes commands and options in a shell.

    For bash: shiftwork completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415  # seldom needed

    made = get_completion_class(kind)
    assert made is not None
    root = click.get_current_context().find_root()
    script = made(root.command, {}, "shiftwork", "_SHIFTWORK_COMPLETE").source()
    current().answer({"shell": kind, "script": script}, lambda: click.echo(script))


@click.command("help", cls=Command)
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
def show_help(names: tuple[str, ...]) -> None:
    """Show the help of the program or of a COMMAND, as its option --help does."""
    context = click.get_current_context().find_root()
    for name in names:
        group = context.command
        command = group.get_command(context, name) if isinstance(group, click.Group) else None
        if command is None:
            what = f"No such command {name!r}" if isinstance(group, click.Group) else f"unexpected argument {name!r}"
            raise click.UsageError(f"{what} in {context.command_path}.", context)
        context = click.Context(command, info_name=name, parent=context)
    text = context.get_help()
    current().answer({"command": context.command_path, "help": text}, lambda: click.echo(text))
