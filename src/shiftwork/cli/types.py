"""`types`: schemas of the payloads and results of each task type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing

if TYPE_CHECKING:
    from shiftwork.task_types.model import TaskType

_SCHEMA: dict[str, Any] = {"type": params.json_object_or_file, "metavar": "JSON"}


@listing("types", covers={"declare": "work"})
def types() -> None:
    """Show and set the schemas of payloads and results of a type. Without a subcommand: the list."""


@types.shows("list")
def _table(found: list[TaskType]) -> None:
    """List the registered types, and where workers declare them differently."""
    columns = ["type", "payload", "result", "options", "set by", "changed", "drift"]
    printing.table(columns, [_row(each) for each in found], "no types are registered")
    for each in found:
        for drift in each.drift:
            printing.echo(f"drift: {each.name}: {drift.text}")


def _row(found: TaskType) -> tuple[object, ...]:
    options = ", ".join({**found.options.settings(), **found.options.limit()})
    schemas = (_fields(found.payload_schema), _fields(found.result_schema))
    return found.name, *schemas, options, found.set_by, printing.when(found.changed_at), len(found.drift) or ""


def _fields(schema: dict[str, Any] | None) -> str:
    """The names of its fields, required ones with a star."""
    if schema is None:
        return "any"
    fields = schema.get("properties")
    if not isinstance(fields, dict) or not fields:
        return str(schema.get("type", "schema"))
    required = schema.get("required")
    starred = required if isinstance(required, list) else []
    return printing.clip(", ".join(f"{name}*" if name in starred else str(name) for name in fields))


@types.shows("show")
def _show(found: TaskType) -> None:
    """Show the schemas and options of type NAME, and where workers declare them differently."""
    facts = [("type", found.name), ("set by", f"{found.set_by} ({found.changed_by})")]
    facts.append(("changed", printing.when(found.changed_at)))
    facts += [(key, printing.pretty(value)) for key, value in found.options.settings().items()]
    facts += [(f"limit {key}", value) for key, value in found.options.limit().items()]
    facts += [("drift", drift.text) for drift in found.drift]
    printing.facts(facts)
    printing.section("Payload", lambda: _print_schema(found.payload_schema))
    printing.section("Result", lambda: _print_schema(found.result_schema))


def _print_schema(schema: dict[str, Any] | None) -> None:
    click.echo("any" if schema is None else printing.pretty(schema))


@types.shows("save")
@click.option("--payload-schema", **_SCHEMA, help="JSON Schema of payloads: JSON, @file, or - for stdin.")
@click.option("--result-schema", **_SCHEMA, help="JSON Schema of results: JSON, @file, or - for stdin.")
def _saved(found: TaskType) -> None:
    """Set the schemas of type NAME; an omitted one accepts anything. Workers do not change them."""
    printing.echo(f"The schemas of type {found.name} are in force.")


@types.shows("remove")
def _removed(removed: bool, name: str) -> None:  # noqa: FBT001  # the answer
    """Stop checking payloads and results of type NAME, until a worker declares it again."""
    printing.echo(f"Type {name} is no longer checked." if removed else f"There is no type {name!r}.")
