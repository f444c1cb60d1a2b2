"""What is said to the agent that holds a task, while it works."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_INSTRUCTION = 10_000
"""Characters of an instruction."""

MAX_INSTRUCTIONS = 1_000
"""Of one task."""

MAX_AT_ONCE = 20
"""Instructions of one task in the answer to a heartbeat; the next come when these are acknowledged."""


class Instruction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text for the holder of a task. A task's instructions are numbered from 1, in the order in which they came."""

    seq: int
    text: str
    sent_at: float
    sent_by: str
    status: Literal["waiting", "delivered", "acknowledged", "unread"]
    """`delivered` once it was in the answer to a holder; `unread` where the task ended without an acknowledgement."""
    delivered_at: float | None = None
    fence: int | None = None
    """The attempt that it was last delivered to: the number in its claim's token."""
    acknowledged_at: float | None = None
    """When a holder first said that it has it. A later attempt gets it again, with this time."""
