"""The program `shiftwork` and all its commands, in the order in which help lists them."""

from __future__ import annotations

import click

from shiftwork.cli.a2a import a2a
from shiftwork.cli.accounts import accounts
from shiftwork.cli.agent_fleet import agents
from shiftwork.cli.artifact_files import artifacts
from shiftwork.cli.batches import batches
from shiftwork.cli.changing import rerun, update
from shiftwork.cli.doctor import doctor
from shiftwork.cli.filtering import cancel, priority, purge, retry
from shiftwork.cli.groups import Root
from shiftwork.cli.letters import dlq
from shiftwork.cli.looking import explain, history, list_, search, show_task
from shiftwork.cli.mcp import mcp
from shiftwork.cli.metering import metrics
from shiftwork.cli.observing import alerts, dags, failures
from shiftwork.cli.operating import events, maintenance, pause, rebalance, resume, status
from shiftwork.cli.protecting import backpressure, breakers, cooldowns, limits, quotas
from shiftwork.cli.proving import prove, soak
from shiftwork.cli.result_waiting import result
from shiftwork.cli.serving import serve
from shiftwork.cli.setup import (
    VERSION_HELP,
    completion,
    migrate,
    settings,
    show_config,
    show_help,
    show_version,
    version,
)
from shiftwork.cli.sinks import deliveries, sinks
from shiftwork.cli.snapshots import copy, restore, snapshot
from shiftwork.cli.spending import budgets, costs
from shiftwork.cli.steering import instructions, tell
from shiftwork.cli.steps import effects, step, steps
from shiftwork.cli.streams import bridge
from shiftwork.cli.submitting import submit
from shiftwork.cli.task_logs import logs
from shiftwork.cli.tokens import tokens
from shiftwork.cli.triggers import triggers
from shiftwork.cli.types import types
from shiftwork.cli.waiting import answer, approvals, approve, signal, wait
from shiftwork.cli.watching import watch
from shiftwork.cli.work import demo, work
from shiftwork.cli.working import claim, complete, fail, heartbeat, message, progress, release, start, verdict
from shiftwork.cli.workspaces import workspaces


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, callback=show_version, help=VERSION_HELP)
def main() -> None:
    """A durable task queue for fleets of AI agents, on SQLite or PostgreSQL."""


SECTIONS: dict[str, list[click.Command]] = {
    "Tasks": [
        *[submit, result, list_, search, show_task, logs, explain, history, steps],
        *[cancel, retry, rerun, update, priority, dlq, dags],
    ],
    "Work": [
        *[work, claim, start, heartbeat, progress, message, complete, verdict, fail, release],
        *[step, effects, artifacts, wait, mcp, a2a],
    ],
    "People": [approvals, approve, answer, tell, instructions, signal],
    "Watch": [watch, status, agents, batches, alerts, failures, events, metrics, costs],
    "Protection": [accounts, breakers, cooldowns, limits, budgets, quotas, backpressure],
    "Automation": [triggers, sinks, deliveries],
    "Operate": [
        *[serve, pause, resume, purge, rebalance, maintenance],
        *[settings, types, tokens, workspaces, migrate, doctor, prove, soak, bridge],
    ],
    "Data": [snapshot, restore, copy],
    "This program": [demo, show_config, show_help, completion, version],
}
"""Every command, under its heading in help."""

for title, commands in SECTIONS.items():
    main.add_section(title, commands)
