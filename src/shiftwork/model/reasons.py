"""Why an attempt failed: one public vocabulary that drives retry, fallback model, session reuse and breaker.

A reason not listed here is allowed (agents have their own words); `retry.otherwise` decides about it.
"""

from __future__ import annotations

TIMEOUT = "timeout"
CLAIM_EXPIRED = "claim_expired"
HEARTBEAT_TIMEOUT = "heartbeat_timeout"
RUNTIME_OFFLINE = "runtime_offline"
CRASH = "crash"
RATE_LIMIT = "rate_limit"
AGENT_ERROR = "agent_error"
NETWORK = "network"
RESOURCE_UNAVAILABLE = "resource_unavailable"
TRANSIENT_API = "transient_api"
INVALID_OUTPUT = "invalid_output"
INVALID_INPUT = "invalid_input"
AUTH_FAILURE = "auth_failure"
BUDGET_EXCEEDED = "budget_exceeded"
SAFETY_VIOLATION = "safety_violation"
RESOURCE_PERMANENT = "resource_permanent"
CANCELLED = "cancelled"
EXHAUSTED = "exhausted"
DISPLACED = "displaced"
EXPIRED = "expired"
DEADLINE_EXCEEDED = "deadline_exceeded"
DELIVERY_UNKNOWN = "delivery_unknown"
APPROVAL_REJECTED = "approval_rejected"
EFFECT_IN_FLIGHT = "effect_in_flight"
EFFECT_UNKNOWN = "effect_unknown"
SESSION_LOST = "session_lost"
CONTEXT_EXCEEDED = "context_exceeded"

MEANING: dict[str, str] = {
    TIMEOUT: "ran longer than its execution limit",
    CLAIM_EXPIRED: "claimed, but never started in time",
    HEARTBEAT_TIMEOUT: "the agent went silent",
    RUNTIME_OFFLINE: "the process that hosts the agent went silent, died or was restarted",
    CRASH: "the agent or its tool died or raised",
    RATE_LIMIT: "a provider asked to slow down",
    AGENT_ERROR: "the agent's tool reported an error of its own",
    NETWORK: "a connection failed",
    RESOURCE_UNAVAILABLE: "something needed is missing for the moment",
    TRANSIENT_API: "an API failed in a way that passes",
    INVALID_OUTPUT: "the output did not pass its validation",
    INVALID_INPUT: "the task's own parameters are wrong",
    AUTH_FAILURE: "credentials were refused",
    BUDGET_EXCEEDED: "the money set aside was used up",
    SAFETY_VIOLATION: "refused for safety",
    RESOURCE_PERMANENT: "something needed will not come back",
    CANCELLED: "cancelled by a person or a program",
    EXHAUSTED: "no attempts left",
    DISPLACED: "made room for more urgent work in a full queue",
    EXPIRED: "waited until no attempt could begin any more",
    DEADLINE_EXCEEDED: "its deadline passed, and `deadline.on_passed` is `fail`",
    DELIVERY_UNKNOWN: "started once, may not be started again, and its outcome is unknown",
    APPROVAL_REJECTED: "a person said no",
    EFFECT_IN_FLIGHT: "an outside action it needs is being performed by another task",
    EFFECT_UNKNOWN: "an earlier attempt began an outside action, and no one can tell whether it happened",
    SESSION_LOST: "the agent could not resume its session",
    CONTEXT_EXCEEDED: "the session has become longer than the model can read",
}

SILENCE = frozenset({CLAIM_EXPIRED, HEARTBEAT_TIMEOUT, RUNTIME_OFFLINE})
"""Reasons given by the queue about an agent that stopped talking; `timeout` in a retry list names them too."""

WORKER_LOST = SILENCE | {CRASH}
"""Reasons under which the queue itself ends a claim: its agent fell silent, or its process is known to be dead."""

SAME_AS: dict[str, str] = {
    CLAIM_EXPIRED: TIMEOUT,
    HEARTBEAT_TIMEOUT: TIMEOUT,
}
"""A reason that counts as another where a retry list names only that one."""

UNSAFE_SESSION = frozenset({INVALID_INPUT, SAFETY_VIOLATION, SESSION_LOST, CONTEXT_EXCEEDED})
"""Reasons caused by the agent's own conversation: a resumed session would fail again, so the next attempt gets a fresh
one. Causes from outside (a crash, a limit, a lost connection, a timeout) leave the session usable."""
