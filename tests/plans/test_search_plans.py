"""A search, a short id and the job that keeps their index read by index, among 100,000 tasks."""

from typing import Any

import pytest

from shiftwork.search.policy import terms
from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

TASKS = 100_000
TABLES = {"tasks", "bodies", "events", "search_entries", "search_words"}

FILL = [
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
      root_id, max_attempts, fence, waiting, created_at, updated_at)
    select {{uuid}}, case n % 3 when 0 then 'other' else 'default' end, 'code', 'ready', 1, n, {NOW}, 50, 0.1, 0,
      {{uuid}}, {{uuid}}, 3, 0, 0, {NOW} + n, {NOW} from {{numbers}}""",
    """insert into bodies (task_id, body) select {uuid}, '{{"title": "some title", "payload": {{"n": 1}}}}'
    from {numbers}""",
    f"""insert into events (at, workspace, task_id, verb, path, actor)
    select {NOW} + n, 'default', {{uuid}}, 'submitted', 'created>ready', 'a' from {{numbers}}""",
    """insert into search_entries (task_id, workspace, tail)
    select {uuid}, case n % 3 when 0 then 'other' else 'default' end,
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + (n % 32), 1)
      || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + (n / 32 % 32), 1)
      || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + (n / 1024 % 32), 1)
      || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + (n / 32768), 1) || '0000000000000000000000' from {numbers}""",
]
WORDS = {
    "sqlite": "insert into search_words (rowid, words) select n, 'common w' || n || ' half' || (n % 2) from {numbers}",
    "postgresql": "insert into search_words (task_id, words) select {uuid},"
    " array_to_tsvector(array['common', 'w' || n, 'half' || (n % 2)]) from {numbers}",
}
"""One word that all tasks have, one that each has alone."""

ANY = dict.fromkeys(
    ("type", "agent", "issue", "dag", "parent", "since", "until", "tag", "reason", "least", "most", "as_of", "after")
)
OURS: dict[str, Any] = {**ANY, "workspace": "default", "any_status": True, "statuses": "[]"}


def found(word: str, *, postgres: bool) -> dict[str, Any]:
    query = terms(word)
    tsquery = query.tsquery.replace("'", "''") if postgres else query.tsquery
    return {**OURS, "tsquery": tsquery, "fts5": query.fts5, "changed": [(uuid(5),)], "matching": []}


def asked(*, postgres: bool) -> list[Hot]:
    by_words = "idx_search_words" if postgres else "tasks_pkey"
    rare = found("w77777", postgres=postgres)
    return [
        Hot("list_found_tasks", {**rare, "count": 50}, by_words, 10),
        Hot("list_newest_found_tasks", {**rare, "count": 50}, by_words, 10),
        Hot("count_found_tasks", {k: v for k, v in rare.items() if k != "after"}, by_words, 10),
        Hot(
            "short_ids",
            {"workspace": "default", "low": "1000", "high": "1000~", "count": 11},
            "idx_search_entries_tail",
            10,
        ),
        Hot(
            "changed_tasks",
            {"after": TASKS - 500, "last": TASKS, "last_row": TASKS, "workspace": None},
            "events_pkey",
            500,
        ),
        Hot("newest_ids", {"after": TASKS - 500, "workspace": "default"}, "events_pkey", 500),
        Hot("search_texts", {"items": [(uuid(n),) for n in range(1, 101)]}, "tasks_pkey", 210),
        Hot("save_search_entries", {"items": [(uuid(7), "X" * 26)]}, "tasks_pkey", 10),
        Hot("save_search_words", {"items": [(uuid(7), "a b")]}, "search_entries_pkey", 10),
        Hot("delete_search_words", {"items": [(uuid(7),)]}, "search_words_pkey", 10),
        Hot("delete_search_entries", {"items": [(uuid(7),)]}, "search_entries_pkey", 10),
    ]


MAX_STEPS = 60_000
"""Of SQLite's machine; reading the entries once takes far more."""


@pytest.mark.timeout(300)  # the fill takes a few seconds, and more on a busy machine
async def test_search_statements_read_few_rows(store_url: str) -> None:
    kind = store_url.partition(":")[0]
    filled = Filled([*FILL, WORDS[kind]], TASKS, asked(postgres=kind == "postgresql"), TABLES, MAX_STEPS)
    assert await complaints(store_url, filled) == []
