"""The program `shiftwork` and all its commands, in the order in which help lists them."""

from __future__ import annotations

import click

from shiftwork.cli.a2a import a2a
from shiftwork.cli.accounts import accounts
from shiftwork.cli.agent_commands import agents
from shiftwork.cli.artifact_commands import artifacts
from shiftwork.cli.bridge_commands import bridge
from shiftwork.cli.budget_commands import budgets, costs
from shiftwork.cli.bulk_commands import cancel, priority, purge, retry
from shiftwork.cli.change_commands import rerun, update
from shiftwork.cli.claim_commands import claim, complete, fail, heartbeat, message, progress, release, start, verdict
from shiftwork.cli.dlq import dlq
from shiftwork.cli.doctor import doctor
from shiftwork.cli.groups import Root
from shiftwork.cli.instruction_commands import instructions, tell
from shiftwork.cli.limit_commands import backpressure, breakers, cooldowns, limits, quotas
from shiftwork.cli.mcp import mcp
from shiftwork.cli.monitoring_commands import alerts, batches, dags, failures, metrics
from shiftwork.cli.prove_commands import prove, soak
from shiftwork.cli.queue_commands import events, maintenance, pause, rebalance, resume, status
from shiftwork.cli.result_command import result
from shiftwork.cli.serve_command import serve
from shiftwork.cli.setup_commands import (
    VERSION_HELP,
    completion,
    migrate,
    settings,
    show_config,
    show_help,
    show_version,
    version,
)
from shiftwork.cli.show_commands import explain, history, list_, search, show_task
from shiftwork.cli.sinks import deliveries, sinks
from shiftwork.cli.snapshots import copy, restore, snapshot
from shiftwork.cli.steps import effects, step, steps
from shiftwork.cli.submit_command import submit
from shiftwork.cli.task_logs import logs
from shiftwork.cli.tokens import tokens
from shiftwork.cli.triggers import triggers
from shiftwork.cli.types import types
from shiftwork.cli.wait_commands import answer, approvals, approve, signal, wait
from shiftwork.cli.watch_command import watch
from shiftwork.cli.work_commands import demo, work
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
