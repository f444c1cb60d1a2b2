"""Namespaces to which several features contribute: tasks, claims, and batches."""

from __future__ import annotations

from shiftwork.engine.api import Batch, Tasks
from shiftwork.engine.claims_api import ClaimBatch, Claims
from shiftwork.steering.api import Inbox, TaskInstructions
from shiftwork.task_logs.api import ClaimLogs, LogBatch, TaskLogs


class Batches(Batch, ClaimBatch, LogBatch):
    """Operations on many tasks or claims at once; each has its own outcome."""


class AllTasks(Tasks, TaskLogs, TaskInstructions):
    """The less common operations on tasks."""


class AllClaims(Claims, ClaimLogs, Inbox):
    """The less common operations on claims."""
