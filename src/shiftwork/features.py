"""The features of the package, each in its own folder."""

WITH_OPERATIONS = (
    "access",
    "accounts",
    "agents",
    "artifacts",
    "batches",
    "budgets",
    "bulk",
    "control",
    "dags",
    "databases",
    "dead_letters",
    "engine",
    "limits",
    "notifications",
    "observe",
    "settings",
    "snapshots",
    "steering",
    "steps",
    "task_logs",
    "task_types",
    "triggers",
    "waits",
)
"""Features with an `api.py`, which declares their operations, and an `operations.py`, which implements them."""

EXTENSIONS = ("compat",)
"""Packages that register with the engine and the server when they are imported. Nothing depends on them."""
