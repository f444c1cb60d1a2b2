"""A large backlog, written by the database itself: a million ready tasks in fifty lanes, and what stands around."""

from tests.plans.asked import AGENTS, NOW

LANES = 50
READY = 1_000_000
HELD = 50_000
RUNNING = 5_000
RETRYING = 5_000
CHILDREN = 10_000
DAG = 200
DEEP_LANE = LANES + 1
DEAD = 100_000
KINDS = ("ready", "held", "running", "retrying", "child", "deep")
WHOLE_DAG = "ffffffff-0000-7000-8000-000000000001"

_COLUMNS = """id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight, dag_id, root_id,
  max_attempts, fence, agent_id, runtime_id, claimed_at, started_at, lease_check_at, available_at, waiting,
  created_at, updated_at"""


def uuid(kind: str, number: int) -> str:
    """Tasks of the backlog can be named: `uuid("ready", 7)`."""
    return f"{KINDS.index(kind):08x}-0000-7000-8000-{number:012x}"


def _tasks(kind: str, count: int, **columns: str) -> str:
    """So many tasks, numbered `n` from 1."""
    id_ = f"('{KINDS.index(kind):08x}-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
    values = {
        "id": id_, "workspace": "'default'", "type": "'type-' || n % 50", "status": f"'{kind}'", "hold": "null",
        "lane": "1 + n % 50", "rank": f"{NOW / 60} + n / 10000.0", "ordered_at": f"{NOW} + n", "priority": "50",
        "boost": "0.1", "path_weight": "0", "dag_id": id_, "root_id": id_, "max_attempts": "3", "fence": "0",
        "agent_id": "null", "runtime_id": "null", "claimed_at": "null", "started_at": "null",
        "lease_check_at": "null", "available_at": "null", "waiting": "0",
        "created_at": f"{NOW}", "updated_at": f"{NOW}",
    } | columns  # fmt: skip
    return f"insert into tasks ({_COLUMNS}) select {', '.join(values.values())} from generate_series(1, {count}) n"


STATEMENTS = [
    # What the fill would make the server do on its own is done by the test, when it wants it.
    *(f"alter table {table} set (autovacuum_enabled = false)" for table in ("tasks", "edges", "bodies")),
    *(f"alter table {table} set unlogged" for table in ("tasks", "bodies")),  # twice as fast to fill
    f"""insert into lanes select n, md5(n::text), 'default', 'type-' || (n - 1), '[]', '[]', '[]', 0.1, null, false
        from generate_series(1, {DEEP_LANE}) n""",
    AGENTS.format(yes="true"),
    _tasks("ready", READY),
    # A DAG without money, in front of everyone.
    _tasks("held", HELD, status="'ready'", hold="'budget'", rank="0"),
    _tasks(
        "running", RUNNING, agent_id="'agent-' || n % 100", runtime_id="'agent-' || n % 100", fence="1",
        claimed_at=f"{NOW}", started_at=f"{NOW}", lease_check_at=f"{NOW} + n", dag_id=f"'{WHOLE_DAG}'::uuid",
    ).replace("generate_series(1, 5000)", f"generate_series(1, {DAG})"),
    _tasks(
        "running", RUNNING, agent_id="'agent-' || n % 100", runtime_id="'agent-' || n % 100", fence="1",
        claimed_at=f"{NOW}", started_at=f"{NOW}", lease_check_at=f"{NOW} + n",
    ).replace("generate_series(1,", f"generate_series({DAG + 1},"),
    _tasks("deep", DEAD + 10_000, status="'ready'", lane=str(DEEP_LANE)),
    _tasks("retrying", RETRYING, available_at=f"{NOW} + n"),
    _tasks("child", CHILDREN, status="'pending'", waiting="1"),
    f"""insert into edges select ('00000004-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
        ('00000002-0000-7000-8000-' || lpad(to_hex(1 + n % {RUNNING}), 12, '0'))::uuid, false, false
        from generate_series(1, {CHILDREN}) n""",
    f"insert into bodies select id, '{{}}' from tasks where ordered_at <= {NOW} + 300000",
]  # fmt: skip

SPENT = f"""
update tasks set status = 'completed', finished_at = 0 where lane = {DEEP_LANE} and ordered_at <= {NOW} + {DEAD}"""
"""The first tasks of the deep lane were done: their entries in the claim index are dead, and no one vacuumed."""
