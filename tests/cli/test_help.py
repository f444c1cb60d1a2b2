"""Help lists every command once, under a title, with a whole sentence."""

import re

import click
import pytest

from shiftwork.cli.groups import Group
from shiftwork.cli.root import SECTIONS, main
from tests.cli.terminal import Terminal


def groups(command: click.Command, *path: str) -> list[tuple[str, ...]]:
    if not isinstance(command, Group):
        return []
    context = click.Context(command)
    below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [path, *(each for name, found in below if found for each in groups(found, *path, name))]


@pytest.mark.parametrize("path", groups(main), ids=" ".join)
def test_help_cuts_no_description(terminal: Terminal, path: tuple[str, ...]) -> None:
    text = terminal.text("help", *path)
    assert text == terminal.text(*path, "--help")
    assert "..." not in re.sub(r"\]?\.\.\.", "", text.splitlines()[0]) + "".join(text.splitlines()[1:])


def test_every_command_is_listed_under_one_title(terminal: Terminal) -> None:
    listed = [str(command.name) for each in SECTIONS.values() for command in each]
    assert sorted(listed) == sorted(main.commands)
    text = terminal.text("--help")
    assert "Other:" not in text
    assert [title for title in SECTIONS if f"\n{title}:\n" not in text] == []


def test_help_of_an_unknown_command_is_an_error(terminal: Terminal) -> None:
    unknown, more = terminal.run("help", "tusks"), terminal.run("help", "list", "more")
    assert (unknown.code, more.code) == (2, 2)
    assert "No such command 'tusks'" in unknown.err
    assert "unexpected argument 'more'" in more.err


def test_help_answers_in_json(terminal: Terminal) -> None:
    found = terminal.json("help", "dlq", "replay")
    assert found["command"] == "shiftwork dlq replay"
    assert "--payload" in found["help"]


def test_version_option_answers_in_json(terminal: Terminal) -> None:
    assert terminal.run("--json", "--version").out == terminal.run("version", "--json").out
