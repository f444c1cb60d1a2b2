"""What all commands share: where the queue is, who speaks, how answers and errors are given."""

from __future__ import annotations

import asyncio
import errno
import functools
import getpass
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from shiftwork import tracing
from shiftwork.cli import printing
from shiftwork.cli.codes import ExitCode, code_of
from shiftwork.core.errors import InputError, ShiftworkError, StoreDamaged, StoreUnavailable

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.queue.queue import Queue

Answer = int | None
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
DEFAULT_STORE = "sqlite:///shiftwork.db"
KINDS = frozenset({"sqlite", "postgresql", "postgres", "http", "https"})
DONE = "What was asked for may have been done; look before you ask again."
ELSEWHERE = "Change to a folder that is there, or name the queue by its whole path: sqlite:////folder/file.db."
NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO})
"""What the system says, without the name of a file, where an output takes nothing."""

PATIENCE_SEC = 2.0
"""A person waits: a server that cannot be reached is soon said to be away."""


class Shell:
    """One call of the command line."""

    def __init__(self) -> None:
        self._store = DEFAULT_STORE
        self.token: str | None = None
        self.workspace: str | None = None
        self.actor = ""
        self.json = False

    @property
    def store(self) -> str:
        """Where the queue is; looked at when it is used, since what is typed last counts."""
        return usable(self._store)

    @store.setter
    def store(self, url: str) -> None:
        self._store = url

    async def open(self, *, create: bool = False) -> AnyQueue:
        """The queue. Only a command that brings something in makes one where there is none."""
        if not self._is_server:
            return await self.open_database(create=create)
        from shiftwork.client import Client  # noqa: PLC0415  # no client for `--help`

        known: dict[str, Any] = {"token": self.token, "workspace": self.workspace, "actor": self.actor or person()}
        return await Client.open(self.store, **known, patience_sec=PATIENCE_SEC)

    async def open_database(self, *, create: bool = False) -> Queue:
        """The queue for a command that looks behind it, as no server lets anybody do."""
        from shiftwork.queue.queue import Queue  # noqa: PLC0415  # no store for `--help`

        self.refuse_server()
        if not create:
            refuse_absent(self.store)
        workspace = self.workspace or "default"
        return await Queue.open(self.store, workspace=workspace, actor=self.actor or person(), migrate=create)

    @property
    def _is_server(self) -> bool:
        return is_server(self.store)

    def refuse_server(self, url: str | None = None) -> None:
        if is_server(url or self.store):
            raise InputError(
                "this is done on the database itself, not through a server",
                where="--store",
                mend="Name the database: sqlite:///file.db or postgresql://…",
            )

    def answer(self, value: Any, text: Callable[[], None]) -> None:
        """The answer of a command: one JSON document, or what `text` prints."""
        if self.json:
            printing.document(value)
        else:
            text()


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def usable(url: str) -> str:
    """Refuse what a command can open no queue at."""
    refuse_memory(url, "--store")
    scheme = url.partition("://")[0]
    if scheme not in KINDS:
        mend = "Use sqlite:///file.db, postgresql://… or a server at http://…"
        raise InputError(f"{scheme or url!r} is not a kind of store", where="--store", mend=mend)
    return url


def refuse_memory(url: str, where: str) -> None:
    """It would end with the command, and what the command acknowledged would be lost."""
    if url in {"sqlite://:memory:", "sqlite:///:memory:"}:
        what = "a queue in memory ends with its process, and this command is one of its own"
        raise InputError(what, where=where, mend="Name a file: sqlite:///file.db.")


def person() -> str:
    """Whoever types this."""
    try:
        return f"human:{os.environ.get('USER') or getpass.getuser()}"
    except (KeyError, OSError):  # a container without a name for its user
        return "human:unknown"


def refuse_absent(url: str) -> None:
    """A mistyped path must not leave an empty queue behind."""
    scheme, _, rest = url.partition("://")
    name = rest.removeprefix("/")
    if scheme == "sqlite" and name and not (path := Path(name).absolute()).exists():
        raise StoreUnavailable(
            f"there is no queue at {path}",
            where="--store",
            mend="Name another with --store or SHIFTWORK_STORE, or make this one with `shiftwork migrate`.",
        )


def with_queue(
    *, create: bool = False, check: Callable[..., None] | None = None
) -> Callable[[Callable[..., Coroutine[Any, Any, Answer]]], Callable[..., Answer]]:
    """A command written as a coroutine over the shell, the open queue and what click read from the command line.

    `check` refuses what makes no sense before the queue is opened, and perhaps made.
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
    """Several options and arguments as one decorator, in the order in which help shows them."""

    def apply(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def refuse(what: str) -> NoReturn:
    """The options make no sense together."""
    raise click.UsageError(what, click.get_current_context())


def current() -> Shell:
    return click.get_current_context().ensure_object(Shell)


# -- options that every command takes ----------------------------------------------------------------------------


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Given before the command or after it: the last one counts."""
    shell = context.ensure_object(Shell)
    if isinstance(value, str):
        filled(context, option, value)
        readable(value)
    if value:
        setattr(shell, str(option.name), value)


def filled(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """An empty word is most often a variable that was not set: what would be meant without the option is not meant."""
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty; name something, or leave the option out")
    return value


def readable(value: str) -> str:
    """Bytes that are no UTF-8 can be handed to a program, and kept in no queue."""
    if value != value.encode(errors="ignore").decode():
        raise click.BadParameter(f"{value!r} is not UTF-8 text")
    return value


def common_options(*, environment: bool) -> list[click.Option]:
    """The environment is read once, at the root, so that it never overrules what was typed there."""

    def option(name: str, text: str, variable: str | None = None, **attributes: Any) -> click.Option:
        known: dict[str, Any] = {"envvar": variable, "show_envvar": True} if environment and variable else {}
        return click.Option([name], help=text, expose_value=False, callback=_remember, **known, **attributes)

    return [
        option("--store", f"Where the queue is [default: {DEFAULT_STORE}].", "SHIFTWORK_STORE", metavar="URL"),
        option("--token", "Lets you in where that is a server, http://host:port.", "SHIFTWORK_TOKEN", metavar="SECRET"),
        option("--workspace", "Which workspace of it [default: default].", "SHIFTWORK_WORKSPACE", metavar="NAME"),
        option("--actor", "Who acts, for the record [default: human:$USER].", "SHIFTWORK_ACTOR", metavar="NAME"),
        option("--json", "Answer in JSON.", is_flag=True),
    ]


class Command(click.Command):
    """A command that takes the common options, too."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        own = {name for option in self.params for name in option.opts}
        self.params += [option for option in common_options(environment=False) if not own.intersection(option.opts)]


class Group(click.Group):
    """Commands under one name, listed in the order of their making."""

    command_class = Command

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.params += common_options(environment=isinstance(self, Root))

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(self.commands)


def listing(named: Callable[[], None]) -> click.Group:
    """A group that alone is its command `list`."""

    def alone() -> Answer:
        context = click.get_current_context()
        return context.invoke(group.commands["list"]) if context.invoked_subcommand is None else None

    group = click.group(cls=Group, invoke_without_command=True)(functools.update_wrapper(alone, named))
    return group


class Root(Group):
    """The program: runs a command, and ends the process with the code its outcome has."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  # click's signature
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002  # click's signature
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        run: Callable[[], Any] = functools.partial(
            super().main,
            given,
            prog_name or "shiftwork",
            complete_var,
            standalone_mode=False,
            windows_expand_args=windows_expand_args,
            **extra,
        )
        if not standalone_mode:
            return run()
        in_json = "--json" in given[: given.index("--") if "--" in given else None]
        _write_anything()
        try:
            code: Any = run()
            sys.stdout.flush()
        except ShiftworkError as error:
            end(error.as_dict(), code_of(error), in_json=in_json)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(ExitCode.OK if error.ctx.command is self else ExitCode.USAGE)
        except click.UsageError as error:
            end(_usage(error), ExitCode.USAGE, in_json=in_json)
        except click.Abort:
            end({"code": "interrupted", "what": "interrupted"}, ExitCode.INTERRUPTED, in_json=in_json)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:  # what a claim handed over is decoded where it is shown
            damaged = StoreDamaged(f"what is stored is not JSON: {error}")
            end(damaged.as_dict(), code_of(damaged), in_json=in_json)
        except OSError as error:
            if _is_nowhere(error):
                gone = StoreUnavailable("the folder this runs in was removed", mend=ELSEWHERE)
                end(gone.as_dict(), code_of(gone), in_json=in_json)
            if error.errno not in NOT_WRITTEN or error.filename is not None:
                raise
            _let_go()
            lost = {"code": "output_lost", "what": f"the answer cannot be written: {error.strerror}", "mend": DONE}
            end(lost, ExitCode.FAILED, in_json=in_json)
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _is_nowhere(error: OSError) -> bool:
    """Whether this runs in a folder that was removed, and something was to be found from there."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return False
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _let_go() -> None:
    """What is still to be written goes nowhere: Python would complain of it at the end, with a code of its own."""
    with suppress(OSError, ValueError):  # an output of a test has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_anything() -> None:
    """A character that the terminal's encoding lacks is written as `?`, not as a traceback.

    An output that was closed (`>&-`) is opened as one that takes nothing: the first file that is opened would get its
    number, and what is written would be lost without a word.
    """
    if sys.stdout is None:
        nowhere = os.open(os.devnull, os.O_RDONLY)
        if nowhere != 1:
            os.dup2(nowhere, 1)
            os.close(nowhere)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _usage(error: click.UsageError) -> dict[str, Any]:
    path = error.ctx.command_path if error.ctx else "shiftwork"
    return {
        "code": "usage",
        "what": " ".join(error.format_message().split()).rstrip("."),  # a list of choices has lines of its own
        "where": path,
        "mend": f"See `{path} --help`.",
    }


def message(error: dict[str, Any]) -> str:
    place = f" (at {error['where']})" if error.get("where") else ""
    return f"error: {error['what']}{place}. {error.get('mend') or ''}".rstrip()


def end(error: dict[str, Any], code: ExitCode, *, in_json: bool) -> NoReturn:
    """Tell what went wrong, and end the process."""
    text = printing.encoded(error).decode() if in_json else printing.clean(message(error))
    with suppress(OSError):  # nobody can be told, but the code can
        click.echo(text, err=True)
    sys.exit(code)
