"""Invalid stores: each is refused at once with its own code, and nothing is left behind."""

import asyncio
import os
import pwd
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import ShiftworkError, StoreUnsuitable
from shiftwork.store import files
from shiftwork.store import postgres as postgres_store
from tests.services import Databases
from tests.services.postgres import execute


def _our_threads() -> int:
    """Threads that a store starts; the event loop has a pool of its own, which comes and goes."""
    return sum(thread.name.startswith("shiftwork-") for thread in threading.enumerate())


async def refusal(url: str, **options: object) -> ShiftworkError:
    """How opening the queue is refused."""
    before = _our_threads()
    with pytest.raises(ShiftworkError) as refused:
        await asyncio.wait_for(Queue.open(url, **options), 20)  # type: ignore[arg-type]  # passed on as they are
    assert [t for t in threading.enumerate() if t.name == "shiftwork-writer"] == []
    assert _our_threads() == before
    return refused.value


@pytest.mark.parametrize(
    ("url", "code", "where"),
    [
        ("mysql://localhost/queue", "invalid_input", "url"),
        ("queue.db", "invalid_input", "url"),
        ("", "invalid_input", "url"),
        ("sqlite:///", "invalid_input", "url"),
        ("sqlite:////no/such/folder/queue.db", "store_unavailable", None),
    ],
)
async def test_invalid_store_url_is_refused(url: str, code: str, where: str | None) -> None:
    error = await refusal(url)
    assert (error.code, error.where) == (code, where)


async def test_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert (await refusal(f"sqlite:///{tmp_path}")).code == "store_unavailable"


async def test_text_file_in_place_of_a_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Dear diary, this is no database at all. " * 100)
    assert (await refusal(f"sqlite:///{file}")).code == "store_damaged"
    assert file.read_text().startswith("Dear diary")


async def test_foreign_sqlite_database_is_refused_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    other = apsw.Connection(str(file))
    other.execute("create table tasks (title text); pragma user_version = 1").fetchall()
    error = await refusal(f"sqlite:///{file}")
    assert error.code == "store_unsuitable"
    assert [row[0] for row in other.execute("select name from sqlite_schema")] == ["tasks"]
    assert other.pragma("journal_mode") == "delete"
    other.close()


async def test_foreign_postgres_database_is_refused_and_unchanged(postgres_dsn: str) -> None:
    execute(postgres_dsn, "create table tasks (title text)")
    assert (await refusal(postgres_dsn)).code == "store_unsuitable"
    connection = await asyncpg.connect(postgres_dsn)
    assert await connection.fetchval("select to_regclass('migrations')") is None
    await connection.close()


async def test_queue_with_unknown_migrations_is_refused(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await queue.engine.store.run(change_checksum)
    assert (await refusal(store_url)).code == "store_unsuitable"


async def change_checksum(tx: object) -> None:
    result = tx._connection.execute("update migrations set checksum = 'other'")  # type: ignore[attr-defined]  # as a foreign hand
    if asyncio.iscoroutine(result):
        await result


async def test_empty_store_is_refused_when_migration_is_not_allowed(tmp_path: Path, postgres_dsn: str) -> None:
    assert (await refusal(f"sqlite:///{tmp_path}/new.db", migrate=False)).code == "store_needs_migration"
    assert (await refusal(postgres_dsn, migrate=False)).code == "store_needs_migration"


async def test_invalid_profile_or_workspace_leaves_nothing_open(store_url: str) -> None:
    assert (await refusal(store_url, profile="no-such-profile")).code == "invalid_input"
    assert (await refusal(store_url, workspace="")).where == "workspace"


HOLDER = """
import apsw, fcntl, sys
if sys.argv[1] == "turn":
    file = open(sys.argv[2] + ".turn", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
else:
    connection = apsw.Connection(sys.argv[2])
    connection.execute("begin immediate")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("what", ["turn", "database"])
async def test_locked_sqlite_file_is_refused_after_patience(tmp_path: Path, what: str) -> None:
    """Many callers wait together, not one after the other; afterwards all continues."""
    file = tmp_path / "queue.db"
    async with Queue.open(f"sqlite:///{file}", patience=0.3) as queue:
        program = [sys.executable, "-c", HOLDER, what, str(file)]
        owner = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"held\n"
        calls = [queue.submit_many([{"type": "code"}]) for _ in range(40)]
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 8)
        assert {getattr(answer, "code", answer) for answer in answers} == {"store_locked"}
        assert (await queue.status()).counts == {}  # readers are not in the way of a writer, nor it in theirs
        await owner.communicate(b"enough\n")
        assert (await queue.submit(type="code")).status == "ready"


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere; permissions mean something only to someone else."""
    if os.geteuid() != 0:
        yield
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    os.setresuid(nobody, nobody, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everyone may enter; those of pytest are for their owner."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def allowed(path: Path, mode: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    yield
    path.chmod(before)


async def test_unwritable_file_or_folder_is_refused(open_folder: Path) -> None:
    file = open_folder / "queue.db"
    await (await Queue.open(f"sqlite:///{file}")).close()
    with allowed(file, 0o444), allowed(open_folder, 0o555), without_privileges():
        error = await refusal(f"sqlite:///{file}")
        assert (error.code, error.where) == ("store_read_only", str(file))
        error = await refusal(f"sqlite:///{open_folder}/new.db")
        assert (error.code, error.where) == ("store_read_only", str(open_folder))


async def test_inaccessible_folder_is_refused(open_folder: Path) -> None:
    (open_folder / "private" / "inside").mkdir(parents=True)
    with allowed(open_folder / "private", 0), without_privileges():
        error = await refusal(f"sqlite:///{open_folder}/private/inside/queue.db")
    assert error.code == "store_unavailable"


async def test_query_only_file_refuses_every_write(tmp_path: Path) -> None:
    async with Queue.open(f"sqlite:///{tmp_path}/queue.db") as queue:
        task = await queue.submit(type="code")
        queue.engine.store._connection.pragma("query_only", True)  # type: ignore[attr-defined]  # of this store
        with pytest.raises(ShiftworkError) as refused:
            await queue.submit(type="code")
        assert refused.value.code == "store_read_only"
        assert (await queue.get(task.id)).status == "ready"


async def test_read_only_server_refuses_every_write(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demoted primary: after searching for a new one for a while, the call is refused."""
    monkeypatch.setattr(postgres_store, "RECONNECT_SEC", 0.2)
    await (await Queue.open(postgres_dsn)).close()
    database = postgres_dsn.rpartition("/")[2]
    execute(postgres_dsn, f'alter database "{database}" set default_transaction_read_only = on')
    await can_look_but_not_write(postgres_dsn)


async def can_look_but_not_write(url: str) -> None:
    assert (await refusal(url, profile="standard")).code == "store_read_only"
    async with Queue.open(url) as queue:
        assert (await queue.tasks.list()).tasks == []
        with pytest.raises(ShiftworkError) as refused:
            await queue.submit(type="code")
        assert refused.value.code == "store_read_only"


async def test_read_only_role_refuses_every_write(postgres: Databases, postgres_dsn: str) -> None:
    await (await Queue.open(postgres_dsn)).close()
    database = postgres_dsn.rpartition("/")[2]
    role = f"reader_{database}"
    execute(postgres_dsn, f"create role {role} login; grant select on all tables in schema public to {role}")
    try:
        await can_look_but_not_write(as_role(postgres_dsn, role))
    finally:
        execute(postgres_dsn, f"drop owned by {role}; drop role {role}")


async def test_role_without_create_right_opens_a_migrated_queue(postgres: Databases, postgres_dsn: str) -> None:
    database = postgres_dsn.rpartition("/")[2]
    role = f"worker_{database}"
    execute(postgres_dsn, f"revoke create on schema public from public; create role {role} login")
    try:
        assert (await refusal(as_role(postgres_dsn, role), migrate=False)).code == "store_needs_migration"
        await (await Queue.open(postgres_dsn)).close()
        rights = "select, insert, update, delete on all tables"
        execute(postgres_dsn, f"grant {rights} in schema public to {role}")
        for migrate in (False, True):
            async with Queue.open(as_role(postgres_dsn, role), migrate=migrate) as queue:
                await queue.submit(type="code")
                assert len(await queue.claim(f"worker-{migrate}")) == 1
    finally:
        execute(postgres_dsn, f"drop owned by {role}; drop role {role}")


def as_role(dsn: str, role: str) -> str:
    return dsn.replace("postgres@", f"{role}@", 1)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:45 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:46 / /home/ada/local\\040disk rw,relatime - ext4 /dev/sdb1 rw
32 22 0:47 / /mnt/share rw - cifs //server/share rw
33 22 0:48 / /mnt/ssh rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/queue", "ext4"),
        ("/home/ada", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/ada/local disk/queue", "ext4"),
        ("/mnt/share", "cifs"),
        ("/mnt/ssh/deep/down", "fuse.sshfs"),
    ],
)
def test_network_file_system_is_detected_by_the_innermost_mount(folder: str, kind: str) -> None:
    assert files.file_system(Path(folder), MOUNTS) == kind
    if kind == "ext4":
        files.refuse_network_file_system(Path(folder), MOUNTS)
    else:
        with pytest.raises(StoreUnsuitable, match=f"network file system \\({kind}\\)"):
            files.refuse_network_file_system(Path(folder), MOUNTS)


async def test_closed_queue_refuses_every_call(store_url: str) -> None:
    queue = await Queue.open(store_url)
    task = await queue.submit(type="code")
    await queue.close()
    await queue.close()
    calls = [
        queue.submit(type="code"),
        queue.submit_many([{"type": "code"}]),
        queue.claim("worker"),
        queue.claim("worker", wait=5),
        queue.get(task.id),
        queue.cancel(task.id),
        queue.events(),
        queue.status(),
    ]
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert [getattr(answer, "code", answer) for answer in answers] == ["store_closed"] * len(calls)


async def test_closing_answers_calls_under_way(store_url: str) -> None:
    queue = await Queue.open(store_url)
    submitting = [asyncio.create_task(queue.submit(type="code")) for _ in range(20)]
    waiting = asyncio.create_task(queue.claim("worker", wait=20, types=["other"]))
    await asyncio.gather(*submitting)
    await queue.close()
    with pytest.raises(ShiftworkError) as refused:
        await asyncio.wait_for(waiting, 10)
    assert refused.value.code == "store_closed"
    async with Queue.open(store_url) as again:
        assert (await again.status()).counts == {"ready": 20}
