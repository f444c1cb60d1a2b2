"""Writes a run's tables, and a chart as SVG, into the performance page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.peers import limit, rows
from bench.peers.catalogue import OURS, ROOT
from bench.peers.figures import Queue, Run, number
from shiftwork.prove.svg import bar, document, text

PAGE = ROOT / "docs" / "explanation" / "performance.md"
CHART = PAGE.with_name("peers.svg")
BEGIN = "<!-- written by make bench-peers from here -->"
END = "<!-- to here -->"

DRAINS = ("default, 1 process", "default, 2 processes", "fast, 1 process", "fast, 2 processes")


def write(run: Run, page: Path = PAGE, chart: Path = CHART) -> None:
    """Replace the tables and the chart of the previous run."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), section(run)), encoding="utf-8")
    chart.write_text(svg(run), encoding="utf-8")


def replaced(text: str, part: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no place for the tables: it lacks {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def section(run: Run) -> str:
    settings = {queue.name: queue.settings for queue in run.queues}
    parts = [
        _conditions(run),
        "![Tasks completed per second by one worker process, at default and fast settings](peers.svg)",
        _table(("", "this run"), [(name, answer) for name, _, answer in rows.answers(run)]),
        "Of ratios, more than one is better than the named queue. In brackets is the range of the rounds.",
        _table(
            ("tasks/s", "submit", "in bulk", "drain, default", "2 processes", "drain, fast", "2 processes", "does not"),
            [(_name(queue), *_rates(run, queue), queue.lacks or "-") for queue in run.queues],
        ),
        _table(
            ("", "pick-up p50, p99", "drain out of deep / out of shallow", "kill -9 to re-run", "bytes per task"),
            [(_name(queue), *_others(run, queue)) for queue in run.queues],
        ),
        "The settings:",
        _table(("", "default", "fast"), [(name, *words.values()) for name, words in settings.items()]),
        *_limit(run),
    ]
    return "\n\n".join(filter(None, parts))


def _conditions(run: Run) -> str:
    rounds = max((len(figure.values) for figure in run.figures), default=0)
    how_often = "one round" if rounds == 1 else f"median of {rounds} rounds"
    facts = run.environment
    text = (
        f"Measured on {run.date} at commit {run.commit}, {how_often}, on {facts.get('cores', '?')} cores"
        f" of {facts.get('processor', 'an unknown processor')} with {facts.get('memory', '?')} of memory (load before"
        f" the run: {facts.get('load', '?')})."
    )
    return f"{text} **A quick run: too small to quote.**" if run.quick else text


def _name(queue: Queue) -> str:
    return queue.label if queue.name.startswith(OURS) else f"{queue.name} {queue.version} ({queue.store})"


def _rates(run: Run, queue: Queue) -> list[str]:
    submits = [run.median("submit", what, queue.label) for what in (rows.SINGLE, rows.BULK)]
    drains = [run.median("drain", what, queue.label) for what in DRAINS]
    return [number(value) for value in (*submits, *drains)]


def _others(run: Run, queue: Queue) -> list[str]:
    pickup = "-"
    if best := rows.best_pickup(run, [queue.label]):
        setting = best[0].removesuffix(", p50")
        times = [run.median("pickup", f"{setting}, {share}", queue.label) for share in ("p50", "p99")]
        pickup = f"{', '.join(map(number, times))} ms ({setting})"
    depths = ", ".join(rows.depth_ratios(run, queue.label)) or "-"
    crash = run.find("crash", "kill -9 to re-run", queue.label)
    again = "-" if crash is None else crash.note or f"{number(crash.median)} s"
    size = number(run.median("bytes", "per finished task", queue.label))
    return [pickup, depths, again, size]


def _limit(run: Run) -> list[str]:
    found = [(each.what, number(each.median)) for each in run.figures if each.measurement == limit.MEASUREMENT]
    if not found:
        return []
    return [
        "What the PostgreSQL server allows: `pgbench` on a narrow table, with no client that does anything:",
        _table(("statement", "tasks/s"), found),
    ]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


BAR, GAP, LABEL, WIDTH, NUMBER = 14, 10, 190, 420, 90
COLOURS = {"default, 1 process": "#9db8d9", "fast, 1 process": "#2f6db5"}


def svg(run: Run) -> str:
    """Draw two bars for each queue: tasks per second at default and at fast settings."""
    values = {
        queue.label: [run.median("drain", what, queue.label) or 0.0 for what in COLOURS]
        for queue in run.queues
        if any(run.median("drain", what, queue.label) for what in COLOURS)
    }
    most = max((value for pair in values.values() for value in pair), default=1.0)
    height = GAP + len(values) * (2 * BAR + GAP) + 20
    parts = []
    for place, (label, pair) in enumerate(values.items()):
        top = GAP + place * (2 * BAR + GAP)
        parts.append(text(LABEL - 8, top + BAR + 4, label, anchor="end"))
        for row, (value, colour) in enumerate(zip(pair, COLOURS.values(), strict=True)):
            wide = WIDTH * value / most
            y = top + row * BAR
            parts.append(bar(LABEL, y, wide, BAR - 1, colour))
            parts.append(text(LABEL + wide + 5, y + 11, number(value)))
    parts.append(text(LABEL, height - 4, "upper bar: default settings, lower bar: fast settings"))
    title = f"Drain, one worker process, tasks/s, {run.date} at {run.commit}"
    return document(LABEL + WIDTH + NUMBER, height, title, parts)
