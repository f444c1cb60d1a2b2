"""Suggests what a mistyped command or option was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

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
