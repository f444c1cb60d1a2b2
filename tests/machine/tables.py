"""The tables of a queue, and the invariants that always hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from shiftwork import Queue
from shiftwork.model import ids
from shiftwork.model.states import CLAIMED_STATES, FINAL, SETTLED, TRANSITIONS
from shiftwork.observe.explain import explain
from shiftwork.settings.model import Idempotency
from shiftwork.store.sqlite_tx import SqliteTx
from shiftwork.store.store import Tx

Row = dict[str, Any]
MOVES = {(source.value, target.value) for (source, _), target in TRANSITIONS.items()}
MOVING = {"waiting_approval", "ready", "claimed", "running", "validating", "retrying"}
WAITS = {"time", "signal", "person"}
"""What a task can wait for that comes from outside of its DAG."""

CREATING = {"submitted", "spawned", "retried", "rerun"}


async def select(tx: Any, sql: str) -> list[Row]:
    """Plain SQL in a transaction of either store."""
    if isinstance(tx, SqliteTx):
        cursor = tx._connection.cursor()
        names: list[str] = []
        rows = []
        for row in cursor.execute(sql):
            names = names or [column[0] for column in cursor.get_description()]
            rows.append(dict(zip(names, row, strict=True)))
        return rows
    return [dict(row) for row in await tx._connection.fetch(sql)]


class Tables(NamedTuple):
    """One consistent snapshot of all tables."""

    tasks: dict[str, Row]
    edges: list[Row]
    waits: list[Row]
    names: list[Row]
    keys: list[Row]
    dags: dict[str, Row]
    attempts: list[Row]
    letters: list[Row]
    agents: dict[str, Row]
    events: list[Row]
    archive: dict[str, str]
    tombstones: int
    stranded: list[Any]

    def newest(self, root: str) -> Row:
        return self.tasks[self.tasks[root]["newest_id"] or root]

    def is_newest(self, row: Row) -> bool:
        return bool(self.newest(row["root_id"])["id"] == row["id"])

    def state(self) -> list[Any]:
        """Return everything that a refused write must not change."""
        return [self.tasks, self.edges, self.keys, self.dags, self.attempts, self.letters, self.agents]


async def look(queue: Queue) -> Tables:
    """Read everything in the queue's workspace."""
    ours = f"where workspace = '{queue.workspace}'"
    of_ours = f"in (select id from tasks {ours})"

    async def read(tx: Tx) -> Tables:
        tasks = await select(tx, f"select * from tasks {ours} order by id")
        events = f"select seq, task_id, verb, path, actor, fence from single_events {ours} order by seq"
        return Tables(
            tasks={row["id"]: row for row in tasks},
            edges=await select(tx, f"select * from edges where dependent {of_ours} order by dependent, dependency"),
            waits=await select(tx, f"select root_id, name, kind, status from waits {ours} order by root_id, name"),
            names=await select(tx, f"select * from names {ours} order by name"),
            keys=await select(tx, f"select * from keys {ours} order by key"),
            dags={row["id"]: row for row in await select(tx, f"select * from dags {ours} order by id")},
            attempts=await select(tx, f"select * from attempts where task_id {of_ours} order by task_id, fence"),
            letters=await select(tx, f"select * from dead_letters {ours} order by task_id, round"),
            agents={row["id"]: row for row in await select(tx, f"select * from agents {ours} order by id")},
            events=await select(tx, events),
            archive={r["id"]: r["status"] for r in await select(tx, f"select id, status from archive {ours}")},
            tombstones=len(await select(tx, f"select task_id from tombstones {ours}"))
            + sum(row["tasks"] for row in await select(tx, f"select tasks from pruned {ours}")),
            stranded=list(await tx.all("stranded", count=10)),
        )

    return await queue.engine.store.read(read)


def check(now: Tables, before: Tables | None) -> None:
    """Every invariant that the tables alone can show."""
    _claims(now, before)
    _outcomes(now)
    _dependencies(now)
    _events(now)
    _money(now)
    _dags(now)
    _keys(now)
    _letters(now)
    created = sum(1 for event in now.events if event["verb"] in CREATING)
    assert created == len(now.tasks) + len(now.archive) + now.tombstones, "a task was lost or made up"


def _claims(now: Tables, before: Tables | None) -> None:
    for id_, row in now.tasks.items():
        held = row["status"] in CLAIMED_STATES
        assert held == (row["agent_id"] is not None), row
        assert not held or now.is_newest(row), "a superseded row is held"
        if before and id_ in before.tasks:
            assert row["fence"] >= before.tasks[id_]["fence"], "a fence went back"
            assert row["version"] >= before.tasks[id_]["version"], "a version went back"
            assert row["round"] >= before.tasks[id_]["round"], "a round went back"
    for agent in now.agents.values():
        held_now = sum(1 for row in now.tasks.values() if row["agent_id"] == agent["id"])
        assert held_now <= (agent["max_concurrent_tasks"] or held_now), "an agent holds more than it may"


def _outcomes(now: Tables) -> None:
    accepted = Counter((a["task_id"], a["round"]) for a in now.attempts if a["outcome"] == "completed")
    assert all(count == 1 for count in accepted.values())
    for row in now.tasks.values():
        assert (row["status"] == "completed") == ((row["id"], row["round"]) in accepted), row
        fences = [a["fence"] for a in now.attempts if a["task_id"] == row["id"]]
        ended = row["fence"] - (row["status"] in CLAIMED_STATES)
        assert fences == list(range(1, ended + 1)), "every claim that ended has its attempt"


def _dependencies(now: Tables) -> None:
    assert not now.stranded
    waits: dict[str, int] = defaultdict(int)
    for edge in now.edges:
        waits[edge["dependent"]] += not edge["satisfied"]
    for wait in now.waits:
        waits[wait["root_id"]] += wait["status"] == "open"
    for row in now.tasks.values():
        if not now.is_newest(row):
            assert row["status"] in FINAL | SETTLED, "a superseded row is alive"
            continue
        counted = waits[row["root_id"]]  # of an ended task, waits are dropped and not counted down
        agrees = row["waiting"] >= counted if row["status"] in FINAL | SETTLED else row["waiting"] == counted
        assert agrees, (row["status"], row["waiting"], counted)
        assert row["status"] not in {"ready", *CLAIMED_STATES} or row["waiting"] == 0, row
        assert row["status"] != "pending" or row["waiting"] > 0, "nothing holds this pending task"
        assert row["blocked_reason"] is None or row["status"] == "pending", row


def _events(now: Tables) -> None:
    last: dict[str, str] = {}
    finals: Counter[tuple[str, int]] = Counter()
    rounds: Counter[str] = Counter()
    assert all(a["seq"] < b["seq"] for a, b in pairwise(now.events))
    for event in now.events:
        assert event["actor"]
        if event["path"] is None:
            continue
        id_, path = event["task_id"], event["path"].split(">")
        assert path[0] == last.get(id_, "created"), f"{event['verb']}: {path} after {last.get(id_)}"
        assert all(move in MOVES for move in pairwise(path)), event
        if path[0] in FINAL | SETTLED and path[-1] not in FINAL:
            rounds[id_] += 1
        finals[id_, rounds[id_]] += path[-1] in FINAL
        last[id_] = path[-1]
    assert max(finals.values(), default=0) <= 1, "a round ended twice"
    for id_, row in now.tasks.items():
        assert last[id_] == row["status"], f"events say {last[id_]}, the row {row['status']}"
        assert rounds[id_] + 1 == row["round"], "a round began without a review"


def _money(now: Tables) -> None:
    held = [row for row in now.tasks.values() if row["agent_id"] is not None]
    for agent in now.agents.values():
        open_ = [max(0, row["granted"] - row["attempt_cost"]) for row in held if row["agent_id"] == agent["id"]]
        assert agent["granted"] == sum(open_), agent
    if now.tombstones or now.archive:
        return  # the attempts of what was removed went with it
    spent: Counter[str] = Counter()
    cost: Counter[str] = Counter()
    for row in held:  # what runs is paid as it is told
        spent[row["agent_id"]] += row["attempt_cost"]
    for attempt in now.attempts:
        spent[attempt["agent_id"]] += max(attempt["cost"], attempt["granted"])
        cost[attempt["task_id"]] += attempt["cost"]
    for agent in now.agents.values():
        assert agent["spent"] == spent[agent["id"]], agent
    for row in now.tasks.values():
        assert row["cost"] == cost[row["id"]], row


def _dags(now: Tables) -> None:
    counted: dict[str, list[Row]] = defaultdict(list)
    for row in now.tasks.values():
        if now.is_newest(row):
            counted[row["dag_id"]].append(row)
        assert row["dag_id"] in now.dags or row["dag_id"] == row["root_id"], "its DAG has no row"
    for dag in now.dags.values():
        rows = counted[dag["id"]]
        statuses = [row["status"] for row in rows]
        open_ = sum(1 for status in statuses if status not in FINAL)
        settled = sum(1 for status in statuses if status in SETTLED)
        assert (dag["open"], dag["settled"]) == (open_, settled), (dag, statuses)
        assert (dag["finished_at"] is None) == (dag["status"] == "open"), dag
        if now.tombstones or now.archive:
            continue
        assert dag["status"] == _dag_status(dag, rows, open_, settled), (dag, statuses)


def _dag_status(dag: Row, rows: list[Row], open_: int, settled: int) -> str:
    """Settlement K-19."""
    if open_ == 0:
        ended = dag["cancelled_by"] or {row["status"] for row in rows} == {"cancelled"}
        return "cancelled" if ended else "completed"
    return "failed" if settled and not any(_moves(row) for row in rows) else "open"


def _moves(row: Row) -> bool:
    if row["status"] == "pending":
        return row["hold"] in WAITS or (row["hold"] == "scheduled" and row["waiting"] == 1)
    return row["status"] in MOVING


def _keys(now: Tables) -> None:
    scope = Idempotency().scope_states
    for key in now.keys:
        id_ = key["task_id"]
        if id_ in now.archive:
            assert now.archive[id_] in scope
            continue
        assert id_ in now.tasks, f"key {key['key']} names no task"
        assert now.tasks[id_]["idempotency_key"] == key["key"]
        assert now.newest(id_)["status"] in scope or now.tasks[id_]["status"] in scope, key


def _letters(now: Tables) -> None:
    open_ = {(letter["task_id"], letter["round"]) for letter in now.letters if not letter["reviewed"]}
    for id_, round_ in open_:
        row = now.tasks[id_]
        assert (row["status"], row["round"]) == ("dead_lettered", round_), "a letter nobody can answer"
        assert now.is_newest(row)
    written = {(letter["task_id"], letter["round"]) for letter in now.letters}
    for row in now.tasks.values():
        assert row["status"] != "dead_lettered" or (row["id"], row["round"]) in written


async def check_explanations(queue: Queue, now: Tables, before: Tables | None) -> None:
    """Check that every changed task that is not running can be explained."""
    changed = [
        row["id"]
        for row in now.tasks.values()
        if row["status"] not in CLAIMED_STATES | FINAL
        and (before is None or before.tasks.get(row["id"], {}).get("version") != row["version"])
    ]

    async def ask(tx: Tx) -> None:
        for id_ in changed:
            stated = await explain(tx, queue.engine, queue.workspace, id_)
            assert stated.holds or stated.position is not None, f"{ids.show_task(id_)} cannot say why it waits"
            assert "pending" not in {hold.kind for hold in stated.holds}, stated

    if changed:
        await queue.engine.store.read(ask)
