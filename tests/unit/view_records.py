"""Records in our names, for the tests of the views."""

from datetime import UTC, datetime
from typing import Any

from shiftwork.model import ids

UUID_1, UUID_2 = "01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8058"
ID_1, ID_2 = ids.show_task(UUID_1), ids.show_task(UUID_2)
T = datetime(2026, 2, 8, 9, 0, tzinfo=UTC).timestamp()
ISO = "2026-02-08T09:00:00.000000Z"


TASK: dict[str, Any] = {
    "id": ID_1,
    "external_id": None,
    "idempotency_key": "k",
    "parent_id": None,
    "retry_of": ID_2,
    "dag_id": "dag_1",
    "workspace_id": "w",
    "issue_id": "i",
    "target_agent_id": "a-7",
    "type": "code",
    "tool_name": "grep",
    "title": "Fix it",
    "payload": {"action": "test", "context": {"relatedFiles": ["a.ts"]}},
    "spec": {"prompt": "do", "constraints": {"max_cost_usd": 0.5}},
    "trigger_type": "chat",
    "trigger_comment_id": None,
    "trigger_summary": "please",
    "session_id": "s",
    "work_dir": "/w",
    "force_fresh_session": False,
    "tags": ["repo:myapp"],
    "created_by": "human:adam",
    "priority": 20,
    "priority_tier": "high",
    "priority_parts": {"base": 20.0, "escalation": 0.0},
    "priority_boost_per_minute": 0.1,
    "deadline": T,
    "effective_priority": 19.5,
    "age_minutes": 5,
    "dependencies": [ID_2],
    "blocked_by": [],
    "blocked": False,
    "blocked_reason": None,
    "status": "running",
    "claim": {
        "agent_id": "agent_coder_01",
        "runtime_id": "r1",
        "claimed_at": T,
        "assignment_id": f"{ID_1}.1",
        "ack_required_by": T + 5,
        "execution_deadline": T + 120,
        "heartbeat_at": None,
        "heartbeat_interval_sec": 30,
    },
    "progress": {"done": 1},
    "version": 4,
    "timeout_sec": 3600,
    "attempts": 1,
    "max_attempts": 3,
    "retry": {"strategy": "exponential", "initial_delay_sec": 60, "backoff_multiplier": 2, "jitter": True},
    "available_at": None,
    "claimed_at": T,
    "last_error": "boom",
    "failure_reason": "claim_expired",
    "failure_history": [{"attempt": 1, "agent": "x", "error": "boom", "at": T}],
    "poison_pill": False,
    "incomplete": False,
    "cancel_reason": None,
    "output": {"type": "code", "validation": "none", "validation_schema": None},
    "result": None,
    "cost_usd": 0.12,
    "tokens_used": {"input": 10, "output": 20},
    "created_at": T,
    "updated_at": T,
    "started_at": T,
    "completed_at": None,
    "cancelled_at": None,
    "failed_at": T,
    "dead_lettered_at": None,
}


def task(**changes: Any) -> dict[str, Any]:
    return {**TASK, **changes}


RESULT: dict[str, Any] = {
    "task_id": ID_1,
    "status": "success",
    "data": {"score": 1},
    "artifacts": [],
    "decision_report": {"why": "x"},
    "error": None,
    "execution_time_sec": 2.5,
    "worker_id": "w-1",
    "completed_at": T,
}


DEAD_LETTER: dict[str, Any] = {
    "task_id": ID_1,
    "dag_id": "dag_1",
    "tool_name": "grep",
    "type": "code",
    "payload": {"a": 1},
    "error": "Timeout after 300s",
    "retry_count": 4,
    "reason": "timeout",
    "failure_history": [{"attempt": 1, "agent": "agent_coder_01", "error": "e", "duration_sec": 45, "cost_usd": 0.12}],
    "total_cost_usd": 0.51,
    "dead_lettered_at": T,
    "reviewed": True,
    "resolution": "modify_and_retry",
    "poison_pill": True,
}


AGENT: dict[str, Any] = {
    "id": "agent_coder_01",
    "type": "coder",
    "capabilities": ["git", "python"],
    "models_available": ["claude-haiku"],
    "max_concurrent_tasks": 2,
    "current_tasks": 1,
    "budget_remaining_usd": 45.0,
    "status": "active",
    "last_heartbeat": T,
    "poll_interval_sec": 5,
    "claim_ttl_sec": 60,
    "isolation_group": "g",
}
