"""Commands for agents that are shell scripts: `claim` and everything done under a claim."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import change_commands, params, printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.shell import Answer, Command, Shell, current, end, filled, person, together, with_queue
from shiftwork.model import ids
from shiftwork.model.errors import StoreLocked

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.engine.assignment import Assignment, ClaimResult
    from shiftwork.model.reports import MessageKind

Action = Callable[..., Coroutine[Any, Any, Answer]]

AGENT = click.option(
    "--agent",
    envvar="SHIFTWORK_AGENT",
    show_envvar=True,
    metavar="NAME",
    callback=filled,
    help="The agent's name [default: --actor].",
)


def _agent(shell: Shell, agent: str | None) -> str:
    return agent or shell.actor or person()


def _as_agent(shell: Shell, queue: AnyQueue) -> AnyQueue:
    """The actor of writes under a claim is its agent, unless another is named."""
    return queue if shell.actor else queue.as_caller("system")


def _fail_when_locked(run: Callable[..., Answer]) -> Callable[..., Answer]:
    """A claim that cannot get the file's lock exits with 1, as scripts expect."""

    @functools.wraps(run)
    def claim_or_end(**named: Any) -> Answer:
        try:
            return run(**named)
        except StoreLocked as error:
            end(error.as_dict(), ExitCode.FAILED, in_json=current().json)

    return claim_or_end


@click.command(cls=Command)
@AGENT
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only tasks of this type. Repeatable.")
@click.option("--capability", "capabilities", multiple=True, help="A capability of the agent. Repeatable.")
@click.option("--model", "models", multiple=True, help="A model the agent has. Repeatable.")
@click.option("--count", type=int, default=1, show_default=True, help="Claim at most this many tasks.")
@click.option("--wait", type=params.NUMBER, default=0, metavar="SEC", help="How long to wait for work; at most 25.")
@click.option("--start", is_flag=True, help="Start the task immediately.")
@click.option("--fifo", is_flag=True, help="Oldest first, whatever the priority.")
@click.option("--print-token", is_flag=True, help="Print claim tokens instead of ids.")
@_fail_when_locked
@with_queue()
async def claim(
    shell: Shell, queue: AnyQueue, *, agent: str | None, types: tuple[str, ...], print_token: bool, **options: Any
) -> None:
    """Claim work and print its id. Without work, nothing is printed."""
    name = _agent(shell, agent)
    answer = await _as_agent(shell, queue).claims.request(name, types=types or None, **options)

    def text() -> None:
        for assignment in answer.assignments:
            click.echo(assignment.token if print_token else assignment.id)
        if not answer.assignments and (why := _in_the_way(answer, name)):
            click.echo(printing.clean(why), err=True)

    shell.answer(_answer(answer), text)


def _in_the_way(answer: ClaimResult, agent: str) -> str | None:
    """Why there is no work for this agent, if there is a reason besides an empty queue."""
    if answer.at_capacity:
        return f"agent {agent} is at capacity"
    if answer.closed:
        return ", ".join(f"{gate.gate.replace('_', ' ')}: {_scope(gate.scope)}" for gate in answer.closed)
    return f"{answer.no_fit} ready tasks do not fit agent {agent} now" if answer.no_fit else None


def _scope(scope: str) -> str:
    return "everything" if scope == "*" else scope


def _answer(answer: ClaimResult) -> dict[str, Any]:
    return {
        "assignments": [_assignment(assignment) for assignment in answer.assignments],
        "closed": list(answer.closed),
        "no_fit": answer.no_fit,
        "at_capacity": answer.at_capacity,
        "slow_down_sec": answer.slow_down_sec,
    }


def _assignment(assignment: Assignment) -> dict[str, Any]:
    return {
        "token": assignment.token,
        "assignment_id": assignment.assignment_id,
        "task": assignment.task(),
        "ack_required_by": assignment.ack_required_by,
        "execution_deadline": assignment.execution_deadline,
        "heartbeat_interval_sec": assignment.heartbeat_interval_sec,
        "model": assignment.model,
        "account": assignment.account,
        "inputs": assignment.inputs,
    }


def under_claim(action: Action) -> Callable[..., Answer]:
    """Adds a first argument: a claim token, or the id of a task that the agent holds."""

    @functools.wraps(action)
    async def with_token(shell: Shell, queue: AnyQueue, *, claim: str, agent: str | None, **named: Any) -> Answer:
        worker = _as_agent(shell, queue)
        token = claim
        if ids.split_token(claim) is None:
            token = await worker.claims.current_token(claim, agent_id=_agent(shell, agent))
        return await action(shell, worker, token, **named)

    return click.argument("claim", metavar="TOKEN")(AGENT(with_queue()(with_token)))


def usage_options(action: Callable[..., Answer]) -> Callable[..., Answer]:
    """Options for usage since the last report."""

    @together(
        click.option(
            "--cost",
            type=params.NUMBER,
            metavar="USD",
            help="Dollars spent since the last report [default: by tokens and model, at public prices].",
        ),
        click.option("--tokens-in", type=int, default=0, help="Tokens read since the last report."),
        click.option("--tokens-out", type=int, default=0, help="Tokens written since the last report."),
        click.option("--on-model", metavar="MODEL", help="The model used."),
    )
    @functools.wraps(action)
    def with_usage(
        *, cost: float | None, tokens_in: int, tokens_out: int, on_model: str | None, **named: Any
    ) -> Answer:
        usage = {"cost_usd": cost, "tokens_in": tokens_in, "tokens_out": tokens_out}
        spent = {**usage, "model": on_model} if any(usage.values()) else None
        return action(usage=spent, **named)

    return with_usage


@click.command(cls=Command)
@under_claim
async def start(shell: Shell, queue: AnyQueue, token: str) -> None:
    """Start claimed work.

    TOKEN is the claim's token, or the id of a task that the agent holds. The token is safer: it is refused once
    someone else, or another run of the same agent, has the task.
    """
    change_commands.show_outcome(shell, await queue.start(token))


@click.command(cls=Command)
@click.option("--progress", type=params.word_or_json, metavar="VALUE", help="The progress: JSON, or a word.")
@click.option("--acknowledge", type=int, metavar="SEQ", help="Acknowledge instructions up to this number.")
@usage_options
@under_claim
async def heartbeat(
    shell: Shell, queue: AnyQueue, token: str, *, progress: Any, usage: Any, acknowledge: int | None
) -> Answer:
    """Extend the lease of claimed work. Prints continue, yield (release it soon), cancel or lost.

    The last two exit with code 4. Further lines are instructions for the agent, each with its number.
    """
    if acknowledge is not None:
        await queue.claims.acknowledge(token, acknowledge)
    answer = await queue.heartbeat(token, progress, usage)
    reason = f": {answer.reason}" if answer.reason else ""
    lines = [f"{answer.action}{reason}", *(f"{each.seq} {each.sent_by}: {each.text}" for each in answer.instructions)]
    shell.answer(answer, lambda: click.echo("\n".join(printing.clean(line) for line in lines)))
    return None if answer.action in {"continue", "yield"} else ExitCode.CONFLICT


@click.command(cls=Command)
@under_claim
@click.argument("value", type=params.word_or_json)
async def progress(shell: Shell, queue: AnyQueue, token: str, *, value: Any) -> None:
    """Report progress. VALUE is JSON, or a word."""
    change_commands.show_outcome(shell, await queue.claims.progress(token, value))


@click.command(cls=Command)
@click.option("--kind", default="text", show_default=True, help="text, tool_call or error.")
@click.option("--data", type=params.json_object, metavar="JSON", help="Further data: a JSON object, or - for stdin.")
@under_claim
@click.argument("text")
async def message(
    shell: Shell, queue: AnyQueue, token: str, *, kind: MessageKind, text: str, data: dict[str, Any] | None
) -> None:
    """Add a message about what the agent is doing."""
    change_commands.show_outcome(shell, await queue.claims.message(token, kind, text, data))


@click.command(cls=Command)
@click.option("--data", type=params.json_value, metavar="JSON", help="The result: JSON, @file, or - for stdin.")
@click.option("--text", help="The result as text.")
@click.option("--artifact", "artifacts", multiple=True, help="A reference to something made. Repeatable.")
@click.option(
    "--decision-report", type=params.json_object, metavar="JSON", help="The decision report: what was decided, and why."
)
@click.option("--verdict", type=params.json_object, metavar="JSON", help="The tests' verdict: passed, evidence, note.")
@usage_options
@under_claim
async def complete(shell: Shell, queue: AnyQueue, token: str, **report: Any) -> None:
    """Submit a result. It is accepted once, however often it is sent."""
    change_commands.show_outcome(shell, await queue.complete(token, **report))


@click.command(cls=Command)
@click.option("--passed/--failed", required=True, help="Whether the tests passed.")
@click.option("--evidence", type=params.json_object, metavar="JSON", help="The evidence: a JSON object, or -.")
@click.option("--note", help="Why, in words.")
@under_claim
async def verdict(
    shell: Shell, queue: AnyQueue, token: str, *, passed: bool, evidence: dict[str, Any] | None, note: str | None
) -> None:
    """Give the verdict on an output that was submitted without one."""
    change_commands.show_outcome(shell, await queue.claims.verdict(token, passed=passed, evidence=evidence, note=note))


@click.command(cls=Command)
@click.option("--reason", required=True, help="Why, in a word that the retry settings know: crash, rate_limit, ...")
@click.option("--error", help="The error message.")
@click.option("--data", type=params.json_value, metavar="JSON", help="A partial result: JSON, @file, or -.")
@click.option("--no-retry", "retry", is_flag=True, flag_value=False, default=True, help="Do not retry.")
@click.option("--provider", help="The provider whose rate limit was hit.")
@click.option("--account", help="Its account.")
@click.option("--model", help="Its model.")
@usage_options
@under_claim
async def fail(shell: Shell, queue: AnyQueue, token: str, **problem: Any) -> None:
    """Report a failed attempt. Prints the task's new status."""
    change_commands.show_outcome(shell, await queue.fail(token, **problem))


@click.command(cls=Command)
@click.option("--reason", help="The reason, recorded in the history.")
@under_claim
async def release(shell: Shell, queue: AnyQueue, token: str, *, reason: str | None) -> None:
    """Return work to the queue. Costs no attempt."""
    change_commands.show_outcome(shell, await queue.release(token, reason))
