"""Artifact statements use an index, however many artifacts are kept."""

from typing import Any

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

KEPT = 100_000
IDLE = 20
SOME = [(f"hash-{n}",) for n in range(100, 110)]
PLACES = [(f"place-{n}",) for n in range(10)]
TABLES = {"artifacts", "artifact_uses"}

# Two workspaces; nearly all are used, by one task each, and twenty are idle.
FILL = [
    f"""insert into artifacts (workspace, hash, size, media_type, place, digests, created_at, created_by, idle_since)
    select case n % 2 when 0 then 'default' else 'other' end, 'hash-' || n, 1, 'text/plain', 'place-' || n, '', {NOW},
      'me', case when n <= {IDLE} then {NOW} end from {{numbers}}""",
    f"""insert into artifact_uses (task_id, role, hash, name, workspace, at, actor)
    select {{uuid}}, 'input', 'hash-' || n, '', case n % 2 when 0 then 'default' else 'other' end, {NOW}, 'me'
    from {{numbers}} where n > {IDLE}""",
]
OURS: dict[str, Any] = {"workspace": "default"}
TASK = uuid(0x100)
ASKED = [
    Hot("hold_artifacts", {"items": SOME, **OURS}, "artifacts_pkey", 10),
    Hot("find_artifacts", {"items": SOME, **OURS}, "artifacts_pkey", 10),
    Hot("want_artifacts", {"items": SOME, **OURS}, "artifacts_pkey idx_artifacts_idle", 20),
    Hot("artifacts_of_task", {"id": TASK, **OURS}, "artifact_uses_pkey", 2),
    Hot("workspaces_with_idle", {}, "idx_artifacts_idle", IDLE),
    Hot("lock_old_artifacts", {"before": NOW, "count": 500, **OURS}, "idx_artifacts_idle", 2 * IDLE),
    Hot("delete_old_artifacts", {"items": SOME, **OURS}, "artifacts_pkey", 40),
    Hot(
        "known_places",
        {"items": PLACES},
        "artifacts_place_key sqlite_autoindex_artifacts_1",
        10,
    ),
]
MAX_STEPS = 3_000
"""Of SQLite's machine; reading the table once takes a hundred times as many."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_artifact_statements_read_only_the_rows_they_return(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, KEPT, ASKED, TABLES, MAX_STEPS)) == []
