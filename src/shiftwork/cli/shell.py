"""Shared by all commands: the queue's address, the actor, and the format of answers and errors."""

from __future__ import annotations

import asyncio
import functools
import getpass
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from shiftwork import config, tracing
from shiftwork.cli import printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.config import Chosen
from shiftwork.model.errors import InputError, StoreUnavailable

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.queue import Queue

Answer = int | None
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
KINDS = frozenset({"sqlite", "postgresql", "postgres", "http", "https", "shiftwork+map"})

PATIENCE_SEC = 2.0
"""Short, because a person waits: an unreachable server is soon reported."""


class Shell:
    """One call of the command line."""

    def __init__(self) -> None:
        self.given: dict[str, Chosen] = {}
        """The values of options, by name."""
        self.actor = ""
        self.json = False

    @functools.cached_property
    def address(self) -> config.Address:
        """The queue's address; resolved on first use, because the last option typed counts."""
        return config.address(self.given.get("store"), self.given.get("workspace"), self.given.get("token"))

    @property
    def store(self) -> str:
        return usable(self.address.store.value or "", self.address.store.source)

    @store.setter
    def store(self, url: str) -> None:
        self.address = self.address._replace(store=self.address.store._replace(value=url))

    @property
    def workspace(self) -> str | None:
        return self.address.workspace.value

    @property
    def token(self) -> str | None:
        return self.address.token.value

    async def open(self, *, create: bool = False) -> AnyQueue:
        """Open the queue. Only a command that adds something creates a missing one."""
        if not self._is_server:
            return await self.open_database(create=create)
        from shiftwork.client import Client  # noqa: PLC0415  # no client for `--help`

        known: dict[str, Any] = {"token": self.token, "workspace": self.workspace, "actor": self.actor or person()}
        return await Client.open(self.store, **known, patience_sec=PATIENCE_SEC)

    async def open_database(self, *, create: bool = False) -> Queue:
        """Open the queue for a command that needs direct access to the database, not through a server."""
        from shiftwork.queue import Queue  # noqa: PLC0415  # no store for `--help`

        self.refuse_server()
        if not create:
            refuse_absent(self.store)
        workspace, is_new = self.workspace or "default", self._is_first_here()
        opened = await Queue.open(self.store, workspace=workspace, actor=self.actor or person(), migrate=create)
        if is_new:
            elsewhere = "set --store, SHIFTWORK_STORE or shiftwork.toml to use another"
            click.echo(f"Created {self.store} in {Path.cwd()}; {elsewhere}.", err=True)
        return opened

    def _is_first_here(self) -> bool:
        """Whether the default file of this folder does not exist yet: another folder's queue may have been meant."""
        default = self.address.store == Chosen(config.DEFAULT_STORE)
        return default and not Path(config.DEFAULT_STORE.removeprefix("sqlite:///")).exists()

    @property
    def _is_server(self) -> bool:
        return is_server(self.store)

    def refuse_server(self, url: str | None = None) -> None:
        if is_server(url or self.store):
            raise InputError(
                "this command needs direct access to the database, not a server",
                where="--store",
                hint="Name the database: sqlite:///file.db or postgresql://…",
            )

    def answer(self, value: Any, text: Callable[[], None]) -> None:
        """The answer of a command: one JSON document, or what `text` prints."""
        if self.json:
            printing.document(value)
        else:
            text()


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def usable(url: str, source: str = "--store") -> str:
    """Refuse an address that is not a queue's."""
    refuse_memory(url, source)
    scheme = url.partition(":")[0]
    if scheme not in KINDS:
        hint = "Use sqlite:///file.db, postgresql://…, shiftwork+map:/path/map.toml or a server at http://…"
        raise InputError(f"{scheme or url!r} is not a kind of store", where=source, hint=hint)
    return url


def refuse_memory(url: str, where: str) -> None:
    """Refuse a queue in memory: it would end with the command, and acknowledged work would be lost."""
    if url in {"sqlite://:memory:", "sqlite:///:memory:"}:
        what = "a queue in memory ends with its process, and every command is a separate process"
        raise InputError(what, where=where, hint="Name a file: sqlite:///file.db.")


def person() -> str:
    """The user who typed the command."""
    try:
        return f"human:{os.environ.get('USER') or getpass.getuser()}"
    except (KeyError, OSError):  # a container without a name for its user
        return "human:unknown"


def refuse_absent(url: str) -> None:
    """Refuse a missing file: a mistyped path must not create an empty queue."""
    scheme, _, rest = url.partition("://")
    name = rest.removeprefix("/")
    if scheme == "sqlite" and name and not (path := Path(name).absolute()).exists():
        raise StoreUnavailable(
            f"there is no queue at {path}",
            where="--store",
            hint="Name another with --store, SHIFTWORK_STORE or shiftwork.toml, or create it with `shiftwork migrate`.",
        )


def with_queue(
    *, create: bool = False, check: Callable[..., None] | None = None
) -> Callable[[Callable[..., Coroutine[Any, Any, Answer]]], Callable[..., Answer]]:
    """A command written as a coroutine over the shell, the open queue and what click read from the command line.

    `check` refuses contradictory options before the queue is opened, and perhaps created.
    """

    def wrap(action: Callable[..., Coroutine[Any, Any, Answer]]) -> Callable[..., Answer]:
        @functools.wraps(action)
        def run(**named: Any) -> Answer:
            shell = current()
            if check is not None:
                check(**named)

            async def through() -> Answer:
                with tracing.carrying(tracing.of_environment()):
                    async with await shell.open(create=create) as queue:
                        return await action(shell, queue, **named)

            return asyncio.run(through())

        return run

    return wrap


def together(*options: Decorator) -> Decorator:
    """Several options and arguments as one decorator, in the order of the help."""

    def apply(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def refuse(what: str) -> NoReturn:
    """Refuse contradictory options."""
    raise click.UsageError(what, click.get_current_context())


def current() -> Shell:
    return click.get_current_context().ensure_object(Shell)


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Accepts an option before or after the command: the last one counts."""
    shell = context.ensure_object(Shell)
    if isinstance(value, str):
        filled(context, option, value)
        readable(value)
    name = str(option.name)
    if value and name in config.Address._fields:
        typed = context.get_parameter_source(name) is not ParameterSource.ENVIRONMENT
        shell.given[name] = Chosen(value, option.opts[0] if typed else config.VARIABLES[name])
    elif value:
        setattr(shell, name, value)


def filled(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty value: it usually comes from an unset variable, and the option's default was not intended."""
    if value is not None and not value.strip():
        raise click.BadParameter("must not be empty")
    return value


def readable(value: str) -> str:
    """Refuse invalid UTF-8, which a command line may contain but no queue can store."""
    if value != value.encode(errors="ignore").decode():
        raise click.BadParameter(f"{value!r} is not UTF-8 text")
    return value


def common_options(*, environment: bool) -> list[click.Option]:
    """The environment is read once, at the root, so that it never overrides options typed there."""

    def option(name: str, text: str, variable: str | None = None, **attributes: Any) -> click.Option:
        known: dict[str, Any] = {"envvar": variable, "show_envvar": True} if environment and variable else {}
        return click.Option([name], help=text, expose_value=False, callback=_remember, **known, **attributes)

    return [
        option(
            "--store",
            f"Address of the queue [default: shiftwork.toml, or {config.DEFAULT_STORE}].",
            "SHIFTWORK_STORE",
            metavar="URL",
        ),
        option("--token", "Access token for a server (http://host:port).", "SHIFTWORK_TOKEN", metavar="SECRET"),
        option("--workspace", "The workspace [default: default].", "SHIFTWORK_WORKSPACE", metavar="NAME"),
        option("--actor", "The actor to record [default: human:$USER].", "SHIFTWORK_ACTOR", metavar="NAME"),
        option("--json", "Print JSON.", is_flag=True),
    ]


class Command(click.Command):
    """A command that also takes the common options."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        own = {name for option in self.params for name in option.opts}
        self.params += [option for option in common_options(environment=False) if not own.intersection(option.opts)]


def message(error: dict[str, Any]) -> str:
    place = f" (at {error['where']})" if error.get("where") else ""
    return f"error: {error['what']}{place}. {error.get('hint') or ''}".rstrip()


def end(error: dict[str, Any], code: ExitCode, *, in_json: bool) -> NoReturn:
    """Print the error, and end the process."""
    text = printing.encoded(error).decode() if in_json else printing.clean(message(error))
    with suppress(OSError):  # the message cannot be printed, but the exit code remains
        click.echo(text, err=True)
    sys.exit(code)
