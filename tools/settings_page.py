"""The page of settings: those that most fleets need first, then the rest by topic, then what profiles change."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from shiftwork.model.bounds import MAX_NUMBER
from shiftwork.settings import model as declared
from shiftwork.settings.meanings import MEANING
from shiftwork.settings.model import Part, Settings
from shiftwork.settings.resolve import KEYS, PROFILES, Resolver, flat, load_profile
from tools.allowed import allowed

ON, OFF = "*on*", "*off*"
DOCUMENTS = tuple(name for name in PROFILES if name != "standard")

MAX_USED = {
    "max_attempts": "../explanation/retries.md",
    "retry.strategy": "../explanation/retries.md",
    "retry.initial_delay_sec": "../explanation/retries.md",
    "timeout_sec": "../howto/write-a-worker.md",
    "claim_ttl_sec": "../explanation/guarantees.md",
    "heartbeat_timeout_sec": "../explanation/guarantees.md",
    "priority_boost_per_minute": "../explanation/priority.md",
    "max_concurrent_tasks": "../howto/write-a-worker.md",
    "serialize_by": "../howto/fairness.md",
    "max_queue_size": "../howto/capacity.md",
    "budget.daily_usd": "../howto/budgets.md",
    "archive_after_sec": "../howto/retention.md",
}
"""The first table: each key with the page that explains it."""

TOPICS = {
    "Order and priority": (
        "ordering", "priority_boost_per_minute", "type_boost", "escalation", "age_boost", "starvation_threshold_sec",
        "deadline", "requeue_front", "fair_share", "affinity_sec", "serialize_by",
    ),
    "Retries": ("max_attempts", "retry", "on_exhausted", "poison", "delivery", "session"),
    "Claims, leases and heartbeats": (
        "claim_ttl_sec", "auto_start", "on_claim_expired", "lease", "heartbeat", "heartbeat_interval_sec",
        "heartbeat_timeout_sec", "health_checks", "agent_timeout_sec", "runtime_offline_sec", "on_stale",
        "reclaim_counts_attempt", "max_reclaims", "max_concurrent_tasks", "require_registration", "recover",
        "poll_interval_sec", "fallback_poll_sec", "wakeup", "claim_folder",
    ),
    "Time limits": ("timeout_sec", "timeout_grace", "timeout_from", "lock_timeout_sec", "operation_max_sec"),
    "Dependencies": (
        "on_dependency_failed", "on_dependency_cancelled", "missing_dependency", "dependency_wait_sec",
        "dependency_wait_applies_to",
    ),
    "Submission and results": (
        "idempotency", "allowed_types", "spawn", "guards", "require_decision_report", "on_missing_report",
    ),
    "Breakers, rate limits and cooldowns": ("circuit_breaker", "rate_limit", "cooldown"),
    "Accounts and models": ("use_before_reset", "model_order"),
    "Budgets": ("budget",),
    "Batches": ("batches",),
    "Capacity": ("max_queue_size", "priority_quotas", "overflow", "warning_at", "critical_at"),
    "Alerts": ("min_agents", "alerts", "friction"),
    "Retention": (
        *("cancel", "purge", "archive_after_sec", "keep_archived_sec", "keep_events_sec"),
        *("artifacts", "snapshots"),
    ),
    "Maintenance": ("maintenance",),
    "Bounds": ("bounds",),
}  # fmt: skip
"""The appendix: every setting or group of settings belongs to one topic."""

INTRODUCTION = """# Settings

A value is looked up at the task, then its type, the workspace, the profile, and last among these
defaults. Write keys with dots. Groups are merged key by key, lists replace each other, and `null`
switches an optional group off. No number may exceed {largest:,}.

`shiftwork settings` shows the values in force and where each comes from;
`shiftwork settings set KEY VALUE` changes one. *Level* is the lowest level that may set a key.

## The settings most fleets need

| key | default | allowed values | level | meaning |
|---|---|---|---|---|
{rows}

## All other settings
"""
TOPIC = """### {name}

| key | default | allowed values | level | meaning |
|---|---|---|---|---|
{rows}
"""
PROFILES_TEXT = """## What profiles change

The profile `standard` has the defaults above. A workspace takes another profile with
`shiftwork settings profile NAME`, or with `serve --profile NAME` when it is created.
"""
PROFILE = """### Profile `{name}`

| key | value |
|---|---|
{rows}
"""


def settings_page() -> str:
    """Return the page: every key once, with its default, its allowed values, its level and its meaning."""
    first = "\n".join(_row(key, page) for key, page in MAX_USED.items())
    parts = [INTRODUCTION.format(largest=int(MAX_NUMBER), rows=first)]
    for name, names in TOPICS.items():
        rows = [_row(key) for key in KEYS if key not in MAX_USED and key.partition(".")[0] in names]
        if rows:
            parts.append(TOPIC.format(name=name, rows="\n".join(rows)))
    parts.append(PROFILES_TEXT)
    parts += [PROFILE.format(name=name, rows="\n".join(_profile_rows(name))) for name in DOCUMENTS]
    return "\n".join(parts)


def without_topic() -> list[str]:
    """Return the keys that the appendix would leave out."""
    known = {name for names in TOPICS.values() for name in names}
    return [key for key in KEYS if key.partition(".")[0] not in known]


def _row(key: str, page: str | None = None) -> str:
    more = f" [More]({page})." if page else ""
    default = _shown(_defaults().get(key, OFF))
    return f"| `{key}` | {default} | {_allowed(key)} | {_level(key)} | {MEANING[key]}{more} |"


def _allowed(key: str) -> str:
    """Return the allowed values; for an optional group, whose keys have their own rows, only how to switch it."""
    kind: Any = Settings
    for name in key.split("."):
        kind = next(field.type for field in msgspec.structs.fields(_group(kind)) if field.encode_name == name)
    return "object or `null`" if _is_group(kind) else allowed(kind).replace("|", "\\|")


def _group(kind: Any) -> type[Part]:
    """Return the group of settings in a field, even if the field may be null."""
    options = (kind, *getattr(kind, "__args__", ()))
    return next(option for option in options if isinstance(option, type) and issubclass(option, Part))


def _is_group(kind: Any) -> bool:
    options = (kind, *getattr(kind, "__args__", ()))
    is_list = getattr(kind, "__origin__", None) is tuple
    return not is_list and any(isinstance(option, type) and issubclass(option, Part) for option in options)


def _level(key: str) -> str:
    return declared.REACH.get(key.partition(".")[0], "task")


def _defaults() -> dict[str, Any]:
    return _with_groups(dict(flat(Settings())))


def _with_groups(values: dict[str, Any]) -> dict[str, Any]:
    """Add an entry for each optional group that is on, since `values` has only its keys."""
    groups = {key.rpartition(".")[0] for key in values} - {""}
    return {**{key: ON for key in KEYS if key in groups}, **values}


def _profile_rows(name: str) -> list[str]:
    """Return the rows of values that differ from the defaults, first for all types, then for single types."""
    values, defaults = _with_groups(dict(flat(Resolver(load_profile(name)).settings()))), _defaults()
    rows = [
        f"| `{key}` | {_shown(values.get(key))} |"
        for key in KEYS
        # Omit the keys of a group that is off: the group's own row says that it is off.
        if values.get(key) != defaults.get(key) and not _is_off(values, key)
    ]
    for type_name in sorted(load_profile(name).types):
        source = f"profile {name}, type {type_name}"
        found = [each for each in Resolver(load_profile(name)).in_force(type_name) if each.source == source]
        rows += [f"| `{each.key}`, for the type `{type_name}` | {_shown(each.value)} |" for each in found]
    return rows


def _is_off(values: dict[str, Any], key: str) -> bool:
    group = key.rpartition(".")[0]
    return bool(group) and group in values and values[group] is None


def _shown(value: Any) -> str:
    return value if value in (ON, OFF) else f"`{json.dumps(value)}`"
