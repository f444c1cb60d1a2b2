"""Commands made from the declarations of operations."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import msgspec

from shiftwork.cli import params, printing
from shiftwork.cli.shell import Command, Shell, with_queue
from shiftwork.operation.declare import Operation
from shiftwork.operation.interface import AnyQueue

Printer = Callable[..., None]
"""Prints an answer for people; see `Group.shows`."""

MAX_COLUMNS = 8
CREATED = 201
_CONDITIONS = frozenset({"version"})
"""Parameters that only programs use."""

_HELP = {
    "after": "Continue after this one.",
    "limit": "Maximum number to show.",
    "note": "The reason, recorded in the history.",
}
"""Of parameters whose declaration describes them no further."""

_WORDS = (str, int, float)
"""Item types for which the option is repeated; a list of anything else is one JSON value."""


def commands_of(namespace: str, printers: Mapping[str, Printer] = {}) -> dict[str, click.Command]:
    """A command for each operation of a namespace, in the order of declaration."""
    kind = type(getattr(AnyQueue(None), namespace))  # type: ignore[arg-type]  # nothing is executed
    methods = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    found = {name: method.operation for name, method in methods.items() if hasattr(method, "operation")}
    return {
        (command := _command_name(name)): command_for(namespace, name, declared, printers.get(command))
        for name, declared in found.items()
    }


def _command_name(method: str) -> str:
    """The command `show` for the operation that returns one thing."""
    return "show" if method in {"get", "info"} else method.replace("_", "-")


def command_for(namespace: str, method: str, operation: Operation, printer: Printer | None = None) -> click.Command:
    """A command that takes the parameters and prints the answer: as a table, as names and values, or as one word."""
    named = list(inspect.signature(printer).parameters)[1:] if printer is not None else []

    async def run(shell: Shell, queue: AnyQueue, **given: Any) -> None:
        call = getattr(getattr(queue, namespace), method)
        answer = await call(**params.given_fields(given, queue.now()))
        known = {**given, "now": queue.now()}
        shell.answer(
            _document(operation, given, answer),
            lambda: show(answer) if printer is None else printer(answer, **{name: known[name] for name in named}),
        )

    replaced = {each.name: each for each in getattr(printer, "__click_params__", [])}
    help_ = printer.__doc__ if printer is not None else None
    return Command(
        _command_name(method),
        callback=with_queue(create=operation.http_method == "PUT" or operation.status == CREATED)(run),
        params=[
            replaced.get(name) or _parameter(operation, name)
            for name in operation.parameters.names
            if name not in _CONDITIONS
        ],
        help=help_ or operation.description,
        short_help=None if help_ else operation.summary,
    )


def _document(operation: Operation, given: Mapping[str, Any], answer: Any) -> Any:
    """The answer for programs; whether something was done, together with what it was done to."""
    if operation.envelope is None or not isinstance(answer, bool):
        return answer
    return {**{name: given[name] for name in operation.path_names}, operation.envelope: answer}


def _parameter(operation: Operation, name: str) -> click.Parameter:
    parameters = operation.parameters
    kind, help_ = _kind(parameters.kinds[name])
    required = name in parameters.required
    if required and (name in operation.path_names or kind is str):
        return click.Argument([name], metavar=name.removesuffix("_id").upper(), type=_click_type(operation, name, kind))
    option = "--" + name.replace("_", "-")
    if kind is bool:
        return click.Option([option, name], is_flag=True, default=None, help=help_)
    default = next(iter(parameters.sent[name][2:]), None)
    shown = default if default and isinstance(default, str | int | float) else None
    item = _kind(get_args(kind)[0])[0] if get_origin(kind) is list else None
    several = item in _WORDS or get_origin(item) is Literal
    type_ = _click_type(operation, name, item if several else kind)
    return click.Option(
        [option, name],
        type=type_,
        metavar="JSON" if type_ is params.json_value else None,
        multiple=several,
        required=required,
        default=shown,
        show_default=shown is not None,
        help=help_ or _HELP.get(name),
    )


def _kind(hint: Any) -> tuple[Any, str | None]:
    """The type of a value without its bounds and None, and its description."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        stated = next((note.description for note in notes if isinstance(note, msgspec.Meta) and note.description), None)
        return _kind(inner)[0], stated
    if get_origin(hint) in {Union, types.UnionType}:
        parts = [part for part in get_args(hint) if part not in {type(None), msgspec.UnsetType}]
        return _kind(parts[0]) if len(parts) == 1 else (Any, None)
    return hint, None


def _click_type(operation: Operation, name: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice([str(word) for word in get_args(kind)])
    if kind is str or kind is int:
        return kind
    if kind is float:
        if name.endswith(("_sec", "seconds")):
            return params.duration
        if name not in operation.parameters.timed:
            return params.NUMBER
        return params.past if name == "since" else params.when
    return params.json_value


def show(answer: Any) -> None:
    """An answer as text."""
    if isinstance(answer, list):
        _show_list(answer)
    elif isinstance(answer, msgspec.Struct):
        printing.facts((name.replace("_", " "), _shown(name, value)) for name, value in _fields(answer))
    elif isinstance(answer, bool):
        click.echo("done" if answer else "nothing to do")
    elif answer is not None:
        click.echo(printing.pretty(answer))


def _show_list(items: Sequence[Any]) -> None:
    if not items or not isinstance(items[0], msgspec.Struct):
        printing.table(["value"], [[item] for item in items])
        return
    columns = [name for name, value in _fields(items[0]) if not isinstance(value, dict | list | msgspec.Struct)]
    shown = columns[:MAX_COLUMNS]
    rows = [[_shown(name, getattr(item, name)) for name in shown] for item in items]
    printing.table([name.replace("_", " ") for name in shown], rows)


def _fields(struct: msgspec.Struct) -> list[tuple[str, Any]]:
    return list(msgspec.structs.asdict(struct).items())


def _shown(name: str, value: Any) -> Any:
    if name.endswith("_at") and isinstance(value, int | float):
        return printing.when(value)
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
