"""The catalogue of metrics: every name with its kind, labels and meaning."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
OTHER = "other"
"""Stands for all values of a label beyond the maximum."""

MAX_SERIES = 200
"""Series of one metric in one workspace: labels that others make up must not fill a monitoring system."""

BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
"""Seconds: agents answer in moments or work for hours."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Metric(NamedTuple):
    """One metric. Counts of a process itself are exposed by servers only and start at zero."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    of_process: bool = False


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("task_queue_depth", "gauge", ("status", "priority_tier"), "existing tasks, by state and tier"),
        Metric(
            "task_queue_wait_seconds",
            "gauge",
            ("quantile",),
            "from ready to claimed: p50, p95 and p99 of the claims of the last five minutes",
        ),
        Metric("tasks_completed_total", "counter", ("type",), "tasks completed"),
        Metric(
            "tasks_failed_total",
            "counter",
            ("reason",),
            "attempts failed, by reason; budget_exceeded counts as `budget`, a lost heartbeat as `timeout`",
        ),
        Metric("tasks_failed_detail_total", "counter", ("reason",), "attempts failed, by the exact reason"),
        Metric("tasks_dead_lettered_total", "counter", (), "tasks moved to the dead letters"),
        Metric("task_cost_usd", "gauge", ("type", "agent", "model"), "dollars spent; model is empty if not reported"),
        Metric("daily_spend_usd", "gauge", (), "dollars spent by attempts claimed today (UTC)"),
        Metric("budget_remaining_usd", "gauge", ("agent",), "dollars left in the budget of an agent that has one"),
        Metric(
            "agent_utilization", "gauge", ("agent_id",), "share of the last five minutes in which it held work, 0 to 1"
        ),
        Metric("agent_heartbeat_misses_total", "counter", ("agent_id",), "claims reclaimed because it went silent"),
        Metric("agent_claim_success_rate", "gauge", ("agent_id",), "share of its claim calls that got work, 0 to 1"),
        Metric("shiftwork_queue_depth", "gauge", ("priority",), "tasks that wait, as high, medium or low"),
        Metric("shiftwork_oldest_ready_seconds", "gauge", (), "how long the longest untouched next task has waited"),
        Metric("shiftwork_wait_seconds", "histogram", ("type",), "from ready to claimed"),
        Metric("shiftwork_execution_seconds", "histogram", ("type",), "of attempts that completed or failed"),
        Metric(
            "shiftwork_latency_seconds",
            "gauge",
            ("quantile",),
            "from created to completed: p50, p95 and p99 of the completions of the last five minutes",
        ),
        Metric("shiftwork_completed_per_minute", "gauge", (), "tasks completed a minute, over the last five"),
        Metric(
            "shiftwork_failure_rate",
            "gauge",
            ("agent_type",),
            "share of the attempts at tasks of this type that failed, of the last five minutes",
        ),
        Metric("shiftwork_agents", "gauge", ("status",), "agents that are active (hold work), idle, failed, offline"),
        Metric("shiftwork_pool_utilization", "gauge", (), "mean utilization of the agents that are active or idle"),
        Metric(
            "shiftwork_tasks_created_total",
            "counter",
            ("type",),
            "tasks submitted, spawned, retried as new tasks, rerun",
        ),
        Metric("shiftwork_claim_calls_total", "counter", ("agent_id", "result"), "claim calls, by work or nothing"),
        Metric("shiftwork_alerts_open", "gauge", ("severity",), "unacknowledged alerts"),
        Metric("shiftwork_gates_closed", "gauge", ("kind",), "pauses, breakers, cooldowns and limits in force"),
        Metric("shiftwork_maintenance_age_seconds", "gauge", ("maintenance_job",), "since each job last ran"),
        Metric(
            "shiftwork_request_seconds",
            "histogram",
            ("operation", "status"),
            "of each operation at this server; for a claim or a stream, waiting counts",
            of_process=True,
        ),
        Metric(
            "shiftwork_refused_writes_total",
            "counter",
            ("code",),
            "writes under an old fence or against the state, refused by this process",
            of_process=True,
        ),
        Metric(
            "shiftwork_database_up",
            "gauge",
            ("database",),
            "1 if the database answers and accepts writes, else 0; `/metrics/all` only",
            of_process=True,
        ),
        Metric(
            "shiftwork_database_answer_seconds",
            "gauge",
            ("database",),
            "how long the database took to answer; `/metrics/all` only",
            of_process=True,
        ),
        Metric(
            "shiftwork_database_maintenance_late_seconds",
            "gauge",
            ("database",),
            "how late the most overdue maintenance job of the database is; `/metrics/all` only",
            of_process=True,
        ),
        Metric(
            "shiftwork_database_workspaces",
            "gauge",
            ("database",),
            "workspaces that the database owns; `/metrics/all` only",
            of_process=True,
        ),
    )
}
