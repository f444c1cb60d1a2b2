"""Draws the screen of `watch`. Imports rich, which is slow, only when it draws."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shiftwork.cli import blocked, printing
from shiftwork.cli.live_status import LiveStatus
from shiftwork.model.text import one_line
from shiftwork.observe.model import Status

ORDER = (
    *("running", "claimed", "ready", "pending", "retrying", "waiting_approval"),
    *("completed", "dead_lettered", "failed"),
)
CAUSES = 4
_BARS = {"critical": "red", "high": "yellow", "normal": "blue", "low": "cyan", "background": "dim"}


def screen(workspace: str, look: LiveStatus, height: int) -> RenderableType:
    rows = max(3, (height - 14 - min(CAUSES + 2, len(look.blocked.causes) + 1)) // 3)
    head = [_title(workspace, look), _counts(look.status), _tiers(look.status), *_warnings(look), *_causes(look)]
    return Group(*head, _running(look, rows), _agents(look, rows), _events(look, rows))


def _title(workspace: str, look: LiveStatus) -> RenderableType:
    text = Text.assemble(("shiftwork ", "bold"), one_line(workspace), "  ", (printing.when(look.at), "dim"))
    rate = f"  {look.status.completed_per_minute:.1f} completed a minute, {look.status.completions} in all"
    text.append(rate)
    if look.status.paused:
        text.append(f"  PAUSED: {one_line(', '.join(look.status.paused))}", "bold yellow")
    return text


def _counts(status: Status) -> RenderableType:
    parts: list[Any] = []
    for state in (*ORDER, *sorted(status.counts.keys() - set(ORDER))):
        if status.counts.get(state):
            parts += [(f"{state} ", printing.style(state)), (f"{status.counts[state]}   ", "bold")]
    return Text.assemble(*parts) if parts else Text("no tasks", "dim")


def _tiers(status: Status) -> RenderableType:
    total = sum(status.tiers.values())
    text = Text("waiting ", "dim")
    for tier, colour in _BARS.items():
        count = status.tiers.get(tier, 0)
        if count:
            text.append("█" * max(1, round(40 * count / total)), colour)
            text.append(f" {tier} {count}  ")
    return text


def _warnings(look: LiveStatus) -> list[RenderableType]:
    asked, dead = (look.status.counts.get(state, 0) for state in ("waiting_approval", "dead_lettered"))
    notices = [f"{len(look.alerts)} open alerts (shiftwork alerts)"] if look.alerts else []
    notices += [f"{asked} wait for a person (shiftwork approvals)"] if asked else []
    notices += [f"{dead} dead letters (shiftwork dlq)"] if dead else []
    return [Text(" · ".join(notices), "yellow")] if notices else []


def _causes(look: LiveStatus) -> list[RenderableType]:
    """Show why work waits; prominently if nothing runs."""
    found = look.blocked
    shown = [Text(one_line(f"  {blocked.sentence(cause)}"), "yellow") for cause in found.causes[:CAUSES]]
    if len(found.causes) > CAUSES:
        shown.append(Text(f"  and {len(found.causes) - CAUSES} more causes (shiftwork explain)", "dim"))
    idle = "Work waits, but nothing is running"
    title = Text(idle, "bold yellow") if found.is_idle else Text("Why work waits", "dim")
    return [title, *shown] if shown else []


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=True, pad_edge=False
    )
    table.padding = (0, 1)
    for column in columns:
        table.add_column(
            column, no_wrap=True, overflow="ellipsis", header_style="dim", min_width=min(8, len(column) + 2)
        )
    return table


def _running(look: LiveStatus, rows: int) -> RenderableType:
    table = _table(f"Running ({len(look.running)})", "task", "type", "title", "agent", "progress", "since")
    for task in look.running[:rows]:
        since = printing.ago(task.claimed_at, look.at)
        cells = (task.id[-8:], task.type, task.title or "", task.claim.agent_id or "", _bar(task.progress), since)
        table.add_row(*map(_cell, cells))
    return table


def _bar(progress: object) -> str:
    """A task's progress; agents may write anything there."""
    done = progress.get("pct") if isinstance(progress, dict) else None
    if isinstance(done, bool) or not isinstance(done, int | float) or not math.isfinite(done):
        return ""
    done = min(max(done, 0), 100)
    return f"{done:>3.0f} % {'▪' * round(done / 10)}"


def _cell(text: str) -> Text:
    """Escape text of callers and agents: it must neither mark up the table nor send control codes to the terminal."""
    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def _agents(look: LiveStatus, rows: int) -> RenderableType:
    table = _table(f"Agents ({len(look.agents)})", "agent", "status", "holds", "spent", "last seen")
    busiest = sorted(look.agents, key=lambda agent: (-agent.current_tasks, agent.id))
    for agent in busiest[:rows]:
        holds = f"{agent.current_tasks}/{agent.max_concurrent_tasks or '∞'}"
        status = Text(agent.status, printing.style(agent.status))
        last_seen = printing.ago(agent.last_heartbeat, look.at)
        table.add_row(_cell(agent.id), status, holds, printing.usd(agent.spent_usd), last_seen)
    return table


def _events(look: LiveStatus, rows: int) -> RenderableType:
    table = _table("Happening", "when", "what", "task", "type", "who")
    for event in reversed(look.events[-rows:]):
        state = event.path[-1] if event.path else event.verb
        what = Text(str(event.verb), printing.style(str(state)))
        cells = (event.task_id or "")[-8:], event.type or "", event.actor
        table.add_row(printing.when(event.at)[11:19], what, *map(_cell, cells))
    return table
