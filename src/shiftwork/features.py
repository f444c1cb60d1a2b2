"""The features of the package, each a folder of its own."""

WITH_OPERATIONS = (
    "access",
    "agents",
    "artifacts",
    "budgets",
    "bulk",
    "control",
    "dags",
    "dead_letters",
    "engine",
    "limits",
    "notifications",
    "observe",
    "settings",
    "snapshots",
    "steps",
    "task_logs",
    "task_types",
    "triggers",
    "waits",
)
"""Those with an `api.py`, which declares their operations, and an `operations.py`, which implements them."""
