"""Every command calls its verb and prints text for people and JSON for programs."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import click
import pytest

from shiftwork.cli import main
from shiftwork.cli.default_command import commands_of
from shiftwork.cli.groups import Group
from shiftwork.cli.params import Number, NumberRange
from tests.cli.terminal import Terminal

# a command line, in which {ready} stands for a task just made; a word of the text; a word of the JSON
COMMANDS = [
    ("submit code", "ready", '"status": "ready"'),
    ("submit code --wait-for-room 1s", "ready", '"status": "ready"'),
    ("submit code --delay 10m --expires 1h", "pending", '"status": "pending"'),
    ("submit code --at 2001-01-01", "ready", '"status": "ready"'),
    ("backpressure", "no limit is set", '"state": "normal"'),
    ("bridge list", "no bridges", "[]"),
    ('dlq replay {dead} --payload {"to":"grace"} --note mended', "ready", '"status": "ready"'),
    (
        'submit code --payload {"a":1} --priority 10 --tag x --idempotency-key k --depends later --deadline 2h',
        "pending",
        '"id"',
    ),
    ("list --status ready --type code --tag web --limit 5", "Write it", '"next": null'),
    ("list --dag {dag}", "pending", '"tasks"'),
    ("list --agent nobody --issue none", "no tasks", '"tasks": []'),
    ("show {done}", "all done", '"lines": 7'),
    ("show {dead}", "boom", '"failure_history"'),
    ("show {waiting}", "waits for", '"blocked_by"'),
    ("explain {waiting}", "missing_dependency", '"holds"'),
    ("explain", "waiting", '"causes"'),
    ("tell {waiting} hurry", "instruction 1 waits", '"status": "waiting"'),
    ("instructions {waiting}", "no instructions", "[]"),
    ("logs {logged}", "fetched", '"text": "fetched"'),
    ("events --task {done} --limit 1", "task.created", '"verb": "submitted"'),
    ("history {done}", "task.completed", '"verb": "completed"'),
    ("claim --agent crab --type code --count 2 --wait 0 --start", "task_", '"assignments"'),
    ("claim --agent crab --capability ocr --model m --fifo --print-token", ".1", '"token"'),
    ("start {claimed}", "running", '"status": "running"'),
    ("heartbeat {running} --progress half --cost 0.5 --tokens-in 3 --tokens-out 4", "continue", '"action": "continue"'),
    ('progress {running} {"pct":50}', "running", '"status": "running"'),
    ('message {running} hello --kind tool_call --data {"a":1}', "running", '"status": "running"'),
    ('complete {running} --data {"n":1} --text done --artifact a.md --cost 1', "completed", '"status": "completed"'),
    ('complete {running} --decision-report {"why":"x"}', "completed", '"status": "completed"'),
    (
        'verdict {submitted_output} --failed --evidence {"exit_code":1} --note slow',
        "retrying",
        '"reason": "invalid_output"',
    ),
    ("fail {running} --reason crash --error boom --data [1] --cost 1", "retrying", '"status": "retrying"'),
    ("release {running} --reason stopping", "ready", '"status": "ready"'),
    ("steps {done} --after 0 --limit 5", "no steps", "[]"),
    ("step {running} plan --begin", "plan in_flight", '"status": "in_flight"'),
    ('step {running} plan --data {"n":5} --cost 0.5', "plan done", '"n": 5'),
    ("effects", "no effects", "[]"),
    ("effects list --task {done} --all --limit 5", "no effects", "[]"),
    ("effects begin {running} charge", "new task_", '"status": "new"'),
    ('effects finish {acting} {acted} --data {"n":1}', "done task_", '"status": "done"'),
    ("effects resolve {doubted} --not-happened --note seen", "withdrawn task_", '"status": "withdrawn"'),
    ("artifacts put {file} --task {ready} --name notes.md", "artifact:sha256-", '"media_type": "text/markdown"'),
    ("artifacts put {file} --claim {running} --media-type text/x-notes", "artifact:sha256-", '"size": 7'),
    ("artifacts get {artifact} --output {file}", "5 bytes in", '"file"'),
    ("artifacts show {artifact}", "text/plain", '"created_by": "system"'),
    ("artifacts list {done}", "no artifacts", "[]"),
    ("artifacts inputs {done}", "no inputs", "[]"),
    ("wait {signalled} gone --signal go --timeout 1h", "it went", '"status": "met"'),
    ("wait {running} nap --until 2020-01-01", "", '"kind": "time"'),
    ("show {asking}", "where: an answer to 'Where to?'", '"question": "Where to?"'),
    ("signal go --data now --task {ready}", "signal go: no task was waiting for it", '"freed": 0'),
    ("approvals", "no open questions or approvals", "[]"),
    ("approvals --kind question --type code --task {ready} --limit 5", "no open questions or approvals", "[]"),
    ("approve {guarded} --note fine --version 1", "ready", '"status": "ready"'),
    ("approve {guarded} --reject --note no", "cancelled", '"status": "cancelled"'),
    ("answer {asking} --data Rome", "ready", '"status": "ready"'),
    ("cancel {ready} {waiting} --reason unwanted", "cancelled", '"status": "cancelled"'),
    ("cancel --dag {dag}", "cancelled", '"status": "cancelled"'),
    ("cancel --status ready,pending --type nothing --yes", "0 cancelled", '"matched": 0'),
    ("cancel --tag web --since 1h --until 2030-01-01 --dry-run", "", '"dry_run": true'),
    ("retry --failure-reason crash --search boom --type nothing --yes", "0 retried", '"action": "retry"'),
    ("priority 5 {ready} --note hurry", "ready", '"status": "ready"'),
    ("priority 5 --agent nemo --issue SHOP-1 --yes", "0 changed", '"action": "set_priority"'),
    ("search nothing like it --status ready", "no tasks match", '"index_lag": 0'),
    ("rerun {done}", "ready", '"status": "ready"'),
    ("update {ready} --at 2h --expires 2035-01-01", "pending", '"version": 2'),
    ("update {ready} --priority 5 --deadline 2030-01-01 --note hurry --version 1", "ready", '"version": 2'),
    ("update {waiting} --clear dependencies", "ready", '"status": "ready"'),
    ("dlq", "no dead letters", "[]"),
    ("dlq list --all", "no dead letters", "[]"),
    ("dlq groups", "no dead letters", "[]"),
    ("dlq show {dead}", "boom", '"signature"'),
    ("dlq retry {dead} {dead} --note again --chain", "ready", '"status": "ready"'),
    ("dlq retry-later {dead} --at 15m", "retrying", '"status": "retrying"'),
    ('dlq modify {dead} --change {"payload":{"b":2}}', "ready", '"status": "ready"'),
    ("dlq cancel {dead}", "cancelled", '"status": "cancelled"'),
    ("dlq abandon {dead}", "dead_lettered", '"status": "dead_lettered"'),
    ("dlq delete {dead}", "dead_lettered", '"status": "dead_lettered"'),
    ("dlq escalate {dead} --note help", "dead_lettered", '"status": "dead_lettered"'),
    ("dlq redrive {signature} --note all", "ready", '"status": "ready"'),
    ("dags", "no DAGs", '"dags": []'),
    ("dags list --status pending --limit 5", "no DAGs", '"next": null'),
    ("dags show {dag}", "begins with", '"roots"'),
    ("dags update {dag} --title Site --ceiling 5", "$0.00 of $5.00", '"budget_ceiling_usd": 5.0'),
    ("dags update {dag} --no-ceiling", "Page", '"budget_ceiling_usd": null'),
    ('dags add-tasks {dag} --tasks [{"type":"code"}]', "ready", '"status": "ready"'),
    ("alerts", "no alerts", "[]"),
    ("alerts list --all --kind escalated --after 0 --limit 5", "no alerts", "[]"),
    ("alerts acknowledge {alert}", "human:ada", '"acknowledged_by": "human:ada"'),
    ("failures", "nothing has failed", "[]"),
    ("failures --by type --since 2h --limit 5", "nothing has failed", "[]"),
    ("agents", "mule", '"id": "mule"'),
    ("agents list", "no limit", '"idle"'),
    ("agents show mule", "last heartbeat", '"id": "mule"'),
    ("agents heartbeat mule", "last heartbeat", '"id": "mule"'),
    ("agents drain mule", "mule draining", '"status": "draining"'),
    ("agents activate mule", "mule active", '"status": "active"'),
    ("agents offline mule", "mule offline", '"status": "offline"'),
    ("agents budget mule 12.5", "$12.50 left", '"remaining_usd": 12.5'),
    ("agents budget mule --no-limit", "no limit", '"remaining_usd": null'),
    ("budgets", "no budgets", "[]"),
    ("budgets list --kind agent --limit 5", "no budgets", "[]"),
    ("budgets set dag {dag} --ceiling 5", "$5.00", '"ceiling_usd": 5.0'),
    ("budgets set day --no-ceiling", "no limit", '"ceiling_usd": null'),
    ("costs --by model --since 1h --limit 5", "tokens out", '"daily_spend_usd"'),
    ("status", "agents", '"counts"'),
    ("pause code --reason upgrade", "type code paused", '"paused": "code"'),
    ("pause", "the queue paused", '"paused": "*"'),
    ("resume", "the queue was not paused", '"was_paused": false'),
    ("purge --type nothing --yes", "0 purged", '"changed": 0'),
    ("purge --status ready --tag web --level medium --older-than 1s --held --yes", "purged", '"action": "purge"'),
    ("rebalance", "nothing to do", "[]"),
    ("events --after 0", "task.completed", '"verb"'),
    ("events --after 0 --task {done} --type easy --verb completed", "task.completed", '"verb": "completed"'),
    ("result {done}", "lines", '"status": "success"'),
    ("result {done} --wait 5", "lines", '"status": "success"'),
    ("events --tail 3 --limit 2", "by", '"seq"'),
    ("breakers", "closed", '"state": "closed"'),
    ("breakers list --type docs", "0/5", '"failure_threshold": 5'),
    ("breakers trip code", "code open", '"state": "open"'),
    ("breakers reset code", "code closed", '"failures": 0'),
    ("breakers import {rules}", "0/2", '"failure_threshold": 2'),
    ("cooldowns", "no cooldowns", "[]"),
    ("cooldowns list", "no cooldowns", "[]"),
    (
        "cooldowns set model:opus,provider:x 15m --reason bill",
        "provider:x,model:opus is in cooldown",
        '"model": "opus"',
    ),
    ("cooldowns lift model:opus", "had no cooldown", '"lifted": false'),
    ("accounts list", "no accounts", "[]"),
    ("accounts set openai main --window 5h=1000tokens", "0% (0 of 1000 tokens)", '"capacity": 1000.0'),
    ("accounts renew openai main", "was not held back", '"renewed": false'),
    ("accounts remove openai main", "openai main", '"removed": false'),
    ("batches list", "none", "[]"),
    ("workspaces list", "default", '"name": "default"'),
    ("workspaces databases", "the only one", '"state": "up"'),
    ("status --all", "default", '"name": "default"'),
    ("limits", "no limits", "[]"),
    ("limits list", "no limits", "[]"),
    ("limits set type:docs --concurrency 2 --requests 9 --window 1m", "type:docs limited", '"window_sec": 60'),
    ("limits set type:docs --tokens 9 --tokens-per-task 3 --window 1h", "type:docs limited", '"tokens": 9'),
    ("limits remove model:opus", "had no limit", '"removed": false'),
    ("settings", "retry.strategy", '"key": "retry.strategy"'),
    ("settings show retry --type code", "exponential", '"source"'),
    ("settings set max_attempts 7", "7", '"source": "workspace"'),
    ("settings set retry.strategy fixed --type code", "type code", '"source": "type code"'),
    ("settings set rate_limit.max_waits 3", "3", '"value": 3'),
    ("settings unset max_attempts", "default", '"source": "default"'),
    ("settings profile loki", "profile loki", '"profile": "loki"'),
    ("tokens", "no tokens", "[]"),
    ("tokens list", "no tokens", "[]"),
    ("sinks", "no sinks", "[]"),
    ("sinks add hook https://example.com/in?key=a --event task.* --type code --severity warning", "whsec_", "whsec_"),
    ("sinks add chat https://example.com/in --kind slack --alert dead_lettered", "chat added", '"secret": null'),
    (
        "sinks add mail ada@example.com --kind email --server smtp://example.com --sender q@example.com --event dag.*",
        "mail added",
        '"sender": "q@example.com"',
    ),
    (
        "sinks update {sink} --address https://example.org/ --secret-file {signing} --creator ada",
        "changed",
        '"https://example.org"',
    ),
    ("sinks list", "no sinks", "[]"),
    ("quotas set shop --max-tasks 5", "shop: tasks 0 of 5", '"max_tasks": 5'),
    ("quotas list", "no quotas", "[]"),
    ("quotas show", "no limit", '"workspace": "default"'),
    ("types", "no types are registered", "[]"),
    ("types list", "no types are registered", "[]"),
    ('types save audit --payload-schema {"type":"object"}', "type audit are in force", '"set_by": "operator"'),
    ("types show {typed}", "set by", '"payload_schema"'),
    ("types remove audit", "There is no type", '"removed": false'),
    ("sinks show {sink}", "https://example.com/…", '"status": "active"'),
    ("sinks pause {sink} --reason holiday", "paused", '"pause_reason": "holiday"'),
    ("sinks resume {sink}", "resumed", '"status": "active"'),
    ("sinks remove {sink}", "removed", '"removed": true'),
    ("deliveries", "no deliveries", "[]"),
    ("deliveries list --status dead --limit 5", "no deliveries", "[]"),
    ("deliveries show {delivery}", "sink.test", '"type": "sink.test"'),
    ("deliveries redeliver {delivery}", "1 sent again", '"redelivered": 1'),
    ("deliveries redeliver --sink {sink}", "0 sent again", '"redelivered": 0'),
    ("tokens create ci --scope work --scope submit --expires 30d", "sw_", '"secret": "sw_'),
    ("tokens revoke {token}", "ci revoked", '"status": "revoked"'),
    ("maintenance", "no job has run yet", "[]"),
    ("maintenance --run", "nothing to do", "{}"),
    ("migrate", "up to date", '"up_to_date": true'),
    ("migrate --check", "up to date", '"up_to_date": true'),
    ("doctor", "is writable", '"level": "ok"'),
    ("watch --once", "Running (", '"running": ['),
    ("prove --minutes 0.01 --every 0 --workers 2 --faults cut", "effects that happened twice", '"lost": 0'),
    ("soak --minutes 0.1 --rate 20 --sample 0.5", "tasks in the tables", '"lost": 0'),
    ("completion bash", "_SHIFTWORK_COMPLETE=bash_complete", '"shell": "bash"'),
    ("version", "shiftwork 0", '"python"'),
    ("config", "SHIFTWORK_STORE", '"source": "SHIFTWORK_STORE"'),
    ("help dlq retry", "Usage: shiftwork dlq retry", '"command": "shiftwork dlq retry"'),
    ("submit code --payload a=1 --payload b:=2 --prompt Hello --retry strategy=fixed", "ready", '"status": "ready"'),
]
# They have tests of their own.
STARTS = {
    "work",
    "demo",
    "serve",
    "mcp",
    "a2a",
    "metrics",
    "bridge loki",
    "bridge redis",
    "sinks test",
    "snapshot list",
}
STARTS |= {"restore", "copy", "accounts report", "batches show", "workspaces move"}
STARTS |= {
    f"triggers {name}" for name in ("add", "list", "show", "pause", "resume", "remove", "fire", "preview", "firings")
}


@pytest.mark.parametrize(("line", "text", "_json"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_command_prints_text_for_people(terminal: Terminal, line: str, text: str, _json: str) -> None:
    prepare(terminal, line)
    assert text in terminal.text(*terminal.fill(line))


@pytest.mark.parametrize(("line", "_text", "word"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_command_prints_json_for_programs(terminal: Terminal, line: str, _text: str, word: str) -> None:
    prepare(terminal, line)
    out = terminal.text(*terminal.fill(line), "--json")
    lines = out.splitlines() if line.startswith(("events", "watch")) else [out]
    documents = [json.loads(part) for part in lines]
    again = "".join(json.dumps(document, indent=2, ensure_ascii=False) for document in documents)
    assert word in again
    assert [value for value in times(documents) if not (isinstance(value, str) and value.endswith("Z"))] == []


def prepare(terminal: Terminal, line: str) -> None:
    if not line.startswith(("dlq", "maintenance")):
        terminal.done()
        terminal.ready()
    terminal.text("migrate")


def times(value: Any) -> Iterator[Any]:
    """Every time in an answer, outside of what callers wrote."""
    if isinstance(value, list):
        for inner in value:
            yield from times(inner)
    if isinstance(value, dict):
        for name, inner in value.items():
            if (name.endswith("_at") or name in {"at", "deadline", "until"}) and inner is not None:
                yield inner
            elif name not in {"payload", "data", "priority_parts", "settings"}:
                yield from times(inner)


@pytest.mark.parametrize("part", range(4))
def test_every_command_works_on_both_stores(each_terminal: Terminal, part: int) -> None:
    """One queue for many commands; every other one answers in JSON."""
    each_terminal.done()
    for line, _, _ in COMMANDS[part::4]:
        done = each_terminal.run(*each_terminal.fill(line), *["--json"][: part % 2])
        assert done.code == 0, (line, done.err)
        if line.startswith("pause"):
            each_terminal.run("resume")  # the commands after it need work to be handed out


def below(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """A command and all commands under it, the default ones of operations too, each with its path."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from below(inner, f"{path} {name}".strip())


def test_every_command_is_covered_here() -> None:
    tried = {line for line, _, _ in COMMANDS}
    leaves = [path for path, command in below(main) if not isinstance(command, click.Group)]
    missed = [path for path in leaves if not any(f"{line} ".startswith(f"{path} ") for line in tried)]
    assert set(missed) == STARTS


def test_an_operation_without_a_default_command_has_another() -> None:
    commands = dict(below(main))
    groups = [group for group in commands.values() if isinstance(group, Group) and group.namespace]
    assert len(groups) > 10
    for group in groups:
        assert set(group.covers) <= set(commands_of(group.namespace or "")), group.name
        for line in group.covers.values():
            path, _, option = line.partition(" --")
            options = {name for parameter in commands[path].params for name in parameter.opts}
            assert not option or f"--{option}" in options, line


def test_printers_are_those_of_operations_and_their_parameters() -> None:
    groups = [each for _, each in below(main) if isinstance(each, Group) and each.printers]
    assert len(groups) > 10
    for group in groups:
        commands = commands_of(group.namespace or "", group.printers)
        for name, printer in group.printers.items():
            parameters = {parameter.name for parameter in commands[name].params}
            assert {each.name for each in getattr(printer, "__click_params__", [])} <= parameters, (
                f"{group.name} {name}"
            )
            assert {*list(inspect.signature(printer).parameters)[1:]} <= parameters | {"now"}, f"{group.name} {name}"


def test_every_numeric_option_has_a_checked_type() -> None:
    options = [option for _, command in below(main) for option in command.params]
    numbers = [option for option in options if isinstance(option.type, click.types.FloatParamType)]
    assert len(numbers) > 10
    assert [option.name for option in numbers if not isinstance(option.type, Number | NumberRange)] == []
