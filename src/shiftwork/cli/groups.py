"""Groups of commands, and the program itself: the outermost group, which ends the process and suggests words."""

from __future__ import annotations

import difflib
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from shiftwork.cli.exit_codes import ExitCode, code_of
from shiftwork.cli.shell import Answer, Command, common_options, end
from shiftwork.model.errors import ShiftworkError, StoreDamaged, StoreUnavailable

DONE = "The request may have taken effect; check before you repeat it."
ELSEWHERE = "Change to an existing folder, or name the queue by its absolute path: sqlite:////folder/file.db."
NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO})
"""System errors, without a file name, of an output that accepts no data."""


class Group(click.Group):
    """Commands under one name, in the order of their declaration.

    A group of a `namespace` has a command for each operation: the default one, perhaps with a printer (`shows`), or
    one written by hand. `covers` names operations that another command performs.
    """

    command_class = Command

    def __init__(
        self, *args: Any, namespace: str | None = None, covers: Mapping[str, str] | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.params += common_options(environment=isinstance(self, Root))
        self.namespace = namespace
        self.covers = covers or {}
        self.printers: dict[str, Callable[..., None]] = {}
        self._order: list[str] = []

    def shows(self, command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Print the answer of an operation's command with the decorated function, for people; all else is derived.

        The function gets the answer, and by name what else it wants: parameters of the operation, and `now`. Its
        docstring replaces the help, its click options and arguments replace those of the same name.
        """

        def register(printer: Callable[..., None]) -> Callable[..., None]:
            self.printers[command] = printer
            self._order.append(command)
            return printer

        return register

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        self._order.append(str(name or cmd.name))

    @functools.cached_property
    def _derived(self) -> dict[str, click.Command]:
        if self.namespace is None:
            return {}
        from shiftwork.cli.default_command import commands_of  # noqa: PLC0415  # needed by the group that was called

        derived = commands_of(self.namespace, self.printers)
        return {name: each for name, each in derived.items() if name not in self.covers}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(dict.fromkeys([*self._order, *self._derived]))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its first sentence, in sections if the group has any."""
        shown = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        for title, names in self.sections(list(shown)).items():
            rows = [(name, shown[name].get_short_help_str(sys.maxsize)) for name in names if not shown[name].hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def sections(self, names: list[str]) -> dict[str, list[str]]:
        """Titles of help, and the commands under each."""
        return {"Commands": names}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self._derived.get(cmd_name)


def listing(
    namespace: str | None = None, covers: Mapping[str, str] | None = None
) -> Callable[[Callable[[], None]], Group]:
    """A group that runs its command `list` by default."""

    def make(named: Callable[[], None]) -> Group:
        def alone() -> Answer:
            context = click.get_current_context()
            if context.invoked_subcommand is not None:
                return None
            command = group.get_command(context, "list")
            assert command is not None
            return context.invoke(command)  # type: ignore[no-any-return]  # as every command answers

        group = click.group(cls=Group, invoke_without_command=True, namespace=namespace, covers=covers)(
            functools.update_wrapper(alone, named)
        )
        return group

    return make


class Root(Group):
    """The program: runs a command, and exits with the code of its outcome."""

    def add_section(self, title: str, commands: Sequence[click.Command]) -> None:
        """Commands that help lists under one title."""
        for command in commands:
            self.add_command(command)
        self._sections[title] = [str(command.name) for command in commands]

    @functools.cached_property
    def _sections(self) -> dict[str, list[str]]:
        return {}

    def sections(self, names: list[str]) -> dict[str, list[str]]:
        listed = {name for each in self._sections.values() for name in each}
        return {**self._sections, "Other": [name for name in names if name not in listed]}

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
        except msgspec.DecodeError as error:  # claimed tasks are decoded when they are shown
            damaged = StoreDamaged(f"the store contains invalid JSON: {error}")
            end(damaged.as_dict(), code_of(damaged), in_json=in_json)
        except OSError as error:
            if _is_nowhere(error):
                gone = StoreUnavailable("the folder this runs in was removed", hint=ELSEWHERE)
                end(gone.as_dict(), code_of(gone), in_json=in_json)
            if error.errno not in NOT_WRITTEN or error.filename is not None:
                raise
            _discard_output()
            lost = {"code": "output_lost", "what": f"the answer cannot be written: {error.strerror}", "hint": DONE}
            end(lost, ExitCode.FAILED, in_json=in_json)
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _is_nowhere(error: OSError) -> bool:
    """Whether the current folder was removed and the command depends on it."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return False
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _discard_output() -> None:
    """Discard unwritten output: Python would report it at exit, with an exit code of its own."""
    with suppress(OSError, ValueError):  # a test's output has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_anything() -> None:
    """A character that the terminal's encoding lacks is written as `?`, not as a traceback.

    A closed output (`>&-`) is opened as one that accepts nothing: otherwise the next opened file would get its
    descriptor, and output would go there silently.
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
    what, meant = error.format_message(), None
    if isinstance(error, click.exceptions.NoSuchCommand | click.exceptions.NoSuchOption):
        what, meant = error.message, suggestion(error)
    return {
        "code": "usage",
        "what": " ".join(what.split()).rstrip("."),  # a list of choices has lines of its own
        "where": path,
        "hint": f"Did you mean `{meant}`? See `{path} --help`." if meant else f"See `{path} --help`.",
    }


CUTOFF = 0.75
"""How similar two words must be: `statsu` and `status` are, `tasks` and `sinks` are not."""

OTHER_WORDS = {
    **dict.fromkeys(("tasks", "task", "ls", "jobs", "queue"), "list"),
    **dict.fromkeys(("add", "enqueue", "push", "create", "new"), "submit"),
    **dict.fromkeys(("find", "grep", "query"), "search"),
    **dict.fromkeys(("get", "describe", "inspect", "info"), "show"),
    **dict.fromkeys(("kill", "stop", "abort", "rm", "remove", "delete"), "cancel"),
    **dict.fromkeys(("replay", "again", "redo"), "retry"),
    **dict.fromkeys(("why", "reason"), "explain"),
    **dict.fromkeys(("run", "worker", "workers"), "work"),
    **dict.fromkeys(("server", "web", "dashboard", "ui"), "serve"),
    **dict.fromkeys(("stats", "info", "ps"), "status"),
    **dict.fromkeys(("dead", "dead-letters", "failed"), "dlq"),
    **dict.fromkeys(("schedule", "schedules", "cron"), "triggers"),
    **dict.fromkeys(("config", "configure", "set"), "settings"),
    **dict.fromkeys(("init", "setup", "upgrade"), "migrate"),
    **dict.fromkeys(("check", "diagnose", "health"), "doctor"),
    **dict.fromkeys(("reprioritise", "reprioritize", "prio"), "priority"),
}
"""Other programs' words for our commands."""


def suggestion(error: click.exceptions.NoSuchCommand | click.exceptions.NoSuchOption) -> str | None:
    """The most similar command or option, if any is close enough."""
    context = error.ctx
    if context is None:
        return None
    command = context.command
    if isinstance(error, click.exceptions.NoSuchOption):
        options = [name for option in command.get_params(context) for name in option.opts if name.startswith("--")]
        return _nearest(error.option_name, options)
    known = command.list_commands(context) if isinstance(command, click.Group) else []
    other = OTHER_WORDS.get(error.command_name) if context.parent is None else None
    return other if other in known else _nearest(error.command_name, known)


def _nearest(word: str, known: Iterable[str]) -> str | None:
    bare = {name.lstrip("-"): name for name in known}
    found = difflib.get_close_matches(word.lstrip("-").lower()[:50], bare, n=1, cutoff=CUTOFF)
    return bare[found[0]] if found else None
