"""The storage of one measurement: a database, a file or a keyspace that no other measurement uses."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import apsw
import psycopg

from bench.peers.catalogue import Peer, Store
from bench.processor import seconds_of_tree
from bench.stores import SERVER
from tests.services import Postgres, Redis
from tests.services.redis import ask, empty

Prepare = Callable[[str], None]
"""Creates a queue's tables at a URL."""


class Site(ABC):
    """An empty queue, as seen from outside."""

    def __init__(self, url: str, server: int | None = None) -> None:
        self.url = url
        self.servers = [] if server is None else [server]
        """Processes whose time counts as the server's."""

    @abstractmethod
    def left(self, questions: Sequence[str], count: int) -> int:
        """Return the number of unfinished tasks."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the files into the state they have after a while at rest."""

    @abstractmethod
    def size(self) -> int:
        """Bytes on disk."""

    def server_cpu(self) -> float:
        """Return the CPU seconds that its servers have used."""
        return seconds_of_tree(self.servers) if self.servers else 0.0


class _Database(Site):
    def __init__(self, server: Postgres, name: str) -> None:
        super().__init__(server.dsn(name), server.pid)
        self._connection = psycopg.connect(self.url, autocommit=True)

    def left(self, questions: Sequence[str], count: int) -> int:
        return sum(self._number(question.format(count=count)) for question in questions)

    def settle(self) -> None:
        self._connection.execute("vacuum analyze")
        self._connection.execute("checkpoint")

    def size(self) -> int:
        return self._number("select pg_database_size(current_database())")

    def close(self) -> None:
        self._connection.close()

    def _number(self, question: str) -> int:
        row = self._connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0])


class _File(Site):
    def __init__(self, file: Path) -> None:
        super().__init__(f"sqlite:///{file}")
        self._file = file

    def left(self, questions: Sequence[str], count: int) -> int:
        return sum(self._number(question.format(count=count)) for question in questions)

    def settle(self) -> None:
        self._run("analyze", "pragma wal_checkpoint(truncate)")

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._file.parent.glob(f"{self._file.name}*"))

    def _number(self, question: str) -> int:
        return int(str(self._run(question)[0][0]))

    def _run(self, *statements: str) -> list[tuple[object, ...]]:
        connection = apsw.Connection(str(self._file))
        connection.set_busy_timeout(10_000)
        rows: list[tuple[object, ...]] = []
        for statement in statements:
            rows = list(connection.execute(statement))
        connection.close()
        return rows


class _Keys(Site):
    def __init__(self, server: Redis) -> None:
        super().__init__(server.url, server.pid)
        self._server = server
        empty(self.url)

    def left(self, questions: Sequence[str], count: int) -> int:  # noqa: ARG002  # as the others
        return sum(int(ask(self.url, question).removeprefix(":")) for question in questions)

    def settle(self) -> None: ...

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._server.sandbox.data.rglob("*") if file.is_file())


class _Folder(Site):
    """A server's data folder in its own format; only the server can count its tasks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    def left(self, questions: Sequence[str], count: int) -> int:  # noqa: ARG002  # as the others
        return 0

    def settle(self) -> None: ...

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())


class Sites:
    """The servers, started on first use, and the tables of each queue, created once and copied for each run."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="shiftwork-peers-"))
        self._postgres: Postgres | None = None
        self._redis: Redis | None = None
        self._prepared: dict[str, str] = {}

    @contextmanager
    def fresh(self, peer: Peer, prepare: Prepare) -> Iterator[Site]:
        """Yield an empty queue of this kind; delete it afterwards."""
        ways: dict[Store, Callable[[Peer, Prepare], Iterator[Site]]] = {
            "postgres": self._database,
            "sqlite": self._file,
            "redis": self._keys,
            "folder": self._empty_folder,
        }
        yield from ways[peer.store](peer, prepare)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a folder for the files of one measurement."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield Path(folder)

    def close(self) -> None:
        for server in (self._postgres, self._redis):
            if server is not None:
                server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def postgres(self) -> Postgres:
        """Start a PostgreSQL server with its default durability."""
        self._postgres = self._postgres or Postgres.start(durable=True, settings=SERVER)
        return self._postgres

    def _database(self, peer: Peer, prepare: Prepare) -> Iterator[Site]:
        if peer.label not in self._prepared:
            name = self.postgres.create_database()
            prepare(self.postgres.dsn(name))
            self._prepared[peer.label] = name
        name = self.postgres.create_database(self._prepared[peer.label])
        site = _Database(self.postgres, name)
        try:
            yield site
        finally:
            site.close()
            self.postgres.drop_database(name)

    def _file(self, peer: Peer, prepare: Prepare) -> Iterator[Site]:
        if peer.label not in self._prepared:
            prepared = tempfile.mkdtemp(dir=self._folder)
            prepare(f"sqlite:///{prepared}/queue.db")
            self._prepared[peer.label] = prepared
        with self.folder() as folder:
            shutil.copytree(self._prepared[peer.label], folder, dirs_exist_ok=True)
            yield _File(folder / "queue.db")

    def _empty_folder(self, _peer: Peer, _prepare: Prepare) -> Iterator[Site]:
        with self.folder() as folder:
            yield _Folder(folder)

    def _keys(self, _peer: Peer, _prepare: Prepare) -> Iterator[Site]:
        self._redis = self._redis or Redis.start()
        yield _Keys(self._redis)
