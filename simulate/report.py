"""The report of a day simulated twice: with agents that share their refusals, and with agents that do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulate.day import Day

FEWER = 10
"""The factor by which sharing must reduce refusals."""


def figures(shared: Day, alone: Day) -> dict[str, Any]:
    """Return the figures of the report."""
    return {
        "refused_shared": _refused(shared),
        "refused_alone": _refused(alone),
        "served_shared": sum(provider.served for provider in shared.providers),
        "served_alone": sum(provider.served for provider in alone.providers),
        "checks": shared.ledger.checks,
        "exceeded": shared.ledger.exceeded + alone.ledger.exceeded,
        "tightest_usd": shared.ledger.tightest,
        "ceilings_raised": shared.ledger.raised,
        "spent_usd": round(shared.ledger.spent_usd, 6),
        "still_granted_usd": round(shared.ledger.leaked_usd, 6),
        "counts": shared.ledger.counts,
        "deaths": shared.deaths,
        "hours": round(shared.ledger.took_sec / 3600, 2),
        "waits_sec": {str(priority): _wait(waits) for priority, waits in sorted(shared.ledger.waits.items())},
    }


def _refused(day: Day) -> int:
    return sum(provider.refused for provider in day.providers)


def _wait(waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    return {"p50": round(ordered[len(ordered) // 2], 1), "max": round(ordered[-1], 1), "tasks": len(ordered)}


def wrong(found: dict[str, Any]) -> list[str]:
    """Return the problems found; none on a good day."""
    problems = list(found["exceeded"][:5])
    if found["refused_alone"] < FEWER * max(1, found["refused_shared"]):
        problems.append(f"refused calls fell only from {found['refused_alone']} to {found['refused_shared']}")
    if found["still_granted_usd"]:
        problems.append(f"{found['still_granted_usd']} USD are granted to work that has ended")
    unfinished = {status: count for status, count in found["counts"].items() if status != "completed" and count}
    if unfinished:
        problems.append(f"not everything was completed: {unfinished}")
    return problems


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the report as text."""
    total = sum(found["counts"].values())
    yield f"{total} tasks, {found['served_shared']} calls, {found['deaths']} deaths of agents, {found['hours']:g} hours"
    yield ""
    yield "calls refused by the providers"
    yield f"  each agent backs off alone     {found['refused_alone']:>8,}"
    ratio = found["refused_alone"] / max(1, found["refused_shared"])
    yield f"  the fleet shares its cooldowns {found['refused_shared']:>8,}   {ratio:.0f} times fewer"
    yield ""
    yield f"money: {found['spent_usd']:.2f} USD spent, checked {found['checks']:,} times"
    yield f"  budgets exceeded               {len(found['exceeded']):>8}"
    for kind, left in sorted(found["tightest_usd"].items()):
        yield f"  least that was left ({kind:<5})    {left:>8.4f} USD"
    yield f"  ceilings raised in the evening {found['ceilings_raised']:>8}"
    yield f"  granted after the end          {found['still_granted_usd']:>8.4f} USD"
    yield ""
    yield "waits until the first claim, seconds (some were held back by a budget until the evening)"
    yield "  priority   tasks      p50      max"
    for priority, wait in found["waits_sec"].items():
        yield f"  {priority:>8} {wait['tasks']:>7} {wait['p50']:>8.1f} {wait['max']:>8.1f}"
    yield ""
    yield "at the end: " + ", ".join(f"{count} {status}" for status, count in sorted(found["counts"].items()) if count)
