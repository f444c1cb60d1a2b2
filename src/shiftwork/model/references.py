"""References to content: `artifact:sha256-…` for stored bytes, `task:…:output` for what a task submitted."""

from __future__ import annotations

import re

ARTIFACT = "artifact:"
_ARTIFACT = re.compile(r"artifact:sha256-([0-9a-f]{64})")
_OUTPUT = re.compile(r"task:(.+):output", re.DOTALL)


def show_artifact(sha256: str) -> str:
    """`artifact:sha256-…`: how an artifact's id is written."""
    return f"{ARTIFACT}sha256-{sha256}"


def artifact_hash(text: str) -> str | None:
    """The SHA-256 in an artifact's id, or None if the text is not one."""
    found = _ARTIFACT.fullmatch(text)
    return found[1] if found else None


def show_output(task_id: str) -> str:
    """`task:…:output`: how the output of a task is referred to."""
    return f"task:{task_id}:output"


def output_of(text: str) -> str | None:
    """The name of the task whose output the text refers to, or None if it is no such reference."""
    found = _OUTPUT.fullmatch(text)
    return found[1] if found else None
