"""Crash points: a program kills itself with SIGKILL at one of them, the same in every run."""

import functools
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import shiftwork.queue  # noqa: F401  # registers the implementations
from shiftwork.engine import claim_requests, finish
from shiftwork.engine.claims_api import ClaimBatch, Claims, WorkerVerbs
from shiftwork.operation.declare import operation_of
from shiftwork.steps import effects
from shiftwork.steps import operations as steps
from shiftwork.steps.api import Effects, Steps

_passed: list[str] = []
_deadly: int | str = 0
Verb = Callable[..., Coroutine[Any, Any, Any]]


def arm(deadly: int | str) -> None:
    """Die at the point with this number, counted from 1, or at the first with this name; 0 means never."""
    global _deadly  # noqa: PLW0603 -- a process dies as a whole
    _deadly = deadly


def passed() -> list[str]:
    """The names of the points so far."""
    return _passed


def point(name: str) -> None:
    _passed.append(name)
    if _deadly in {len(_passed), name}:
        os.kill(os.getpid(), signal.SIGKILL)


def mark_verbs() -> None:
    """Points around and inside the transactions of a whole task: nothing written, all written, all committed."""
    for module, verb, method in (
        (claim_requests, "claim", Claims.request),
        (steps, "complete", Steps.complete),
        (effects, "begin", Effects.begin),
        (effects, "finish", Effects.finish),
        (finish, "complete", ClaimBatch.complete),
        (finish, "complete", WorkerVerbs.complete),
    ):
        operation = operation_of(method)
        if not hasattr(getattr(module, verb), "marked"):
            setattr(module, verb, _inside(getattr(module, verb), operation.name))
        assert operation.implementation is not None
        operation.implementation = _context(operation.implementation, operation.name)


def _inside(verb: Verb, name: str) -> Verb:
    @functools.wraps(verb)
    async def run(*args: Any, **named: Any) -> Any:
        point(f"{name}: nothing written")
        answer = await verb(*args, **named)
        point(f"{name}: not committed")
        return answer

    run.marked = True  # type: ignore[attr-defined]  # so that two ways to one verb mark it once
    return run


def _context(method: Verb, name: str) -> Verb:
    @functools.wraps(method)
    async def call(*args: Any, **named: Any) -> Any:
        answer = await method(*args, **named)
        point(f"{name}: committed")
        return answer

    return call
