"""Shiftwork: a durable task queue for fleets of AI agents."""

from shiftwork.core.errors import ShiftworkError
from shiftwork.core.task import Dag, NewDag, NewTask, Result, Submitted, Task, Usage
from shiftwork.queue.agents import Agent, NewAgent
from shiftwork.queue.claim import Assignment
from shiftwork.queue.queue import Queue
from shiftwork.queue.working import Problem, Report

__all__ = [
    "Agent",
    "Assignment",
    "Dag",
    "NewAgent",
    "NewDag",
    "NewTask",
    "Problem",
    "Queue",
    "Report",
    "Result",
    "ShiftworkError",
    "Submitted",
    "Task",
    "Usage",
]
__version__ = "0.1.0"
