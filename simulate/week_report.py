"""The report of a week simulated twice: the queue chooses accounts, or each agent backs off by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulate.week import Week

FEWER = 10
"""The factor by which refusals must fall."""
USED = 0.95
"""The share of the windows that must be used, since there is enough work."""


def figures(managed: Week, alone: Week) -> dict[str, Any]:
    return {"managed": _figures(managed), "alone": _figures(alone)}


def _figures(week: Week) -> dict[str, Any]:
    found = list(week.subscriptions.values())
    used, idle = sum(each.used for each in found), sum(each.idle_five for each in found)
    weekly = sum(each.idle_week for each in found)
    return {
        "served": sum(each.served for each in found),
        "refused": sum(each.refused for each in found),
        "resets": sum(each.resets for each in found),
        "tokens_used": used,
        "idle_at_resets": idle,
        "idle_at_week_end": weekly,
        "used_of_five_hours": round(used / (used + idle), 4),
        "used_of_week": round(used / (used + weekly), 4),
        "cost_usd": round(week.cost_usd, 2),
        "completed": week.counts.get("completed", 0),
        "tasks": sum(week.counts.values()),
    }


def wrong(found: dict[str, Any]) -> list[str]:
    """Return the problems found; none if the queue did well."""
    managed, alone = found["managed"], found["alone"]
    problems = []
    if alone["refused"] < FEWER * max(1, managed["refused"]):
        problems.append(f"refused calls fell only from {alone['refused']} to {managed['refused']}")
    problems += [
        f"only {managed[name]:.1%} of the {words} were used"
        for name, words in (("used_of_five_hours", "5-hour windows"), ("used_of_week", "weekly windows"))
        if managed[name] < USED
    ]
    return problems


_ROWS = [
    ("calls served", "served", "{:,}"),
    ("calls refused", "refused", "{:,}"),
    ("5-hour windows that were reset", "resets", "{:,}"),
    ("tokens idle at these resets", "idle_at_resets", "{:,}"),
    ("used of the 5-hour windows", "used_of_five_hours", "{:.1%}"),
    ("tokens idle at the end of the week", "idle_at_week_end", "{:,}"),
    ("used of the weekly windows", "used_of_week", "{:.1%}"),
    ("tasks completed", "completed", "{:,}"),
    ("cost in USD, at public prices", "cost_usd", "{:,.2f}"),
]


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the report as text."""
    yield f"{found['managed']['tasks']} tasks, a week"
    yield ""
    yield f"{'':<36} {'agents alone':>14} {'queue':>14}"
    for title, name, form in _ROWS:
        yield f"{title:<36} {form.format(found['alone'][name]):>14} {form.format(found['managed'][name]):>14}"
