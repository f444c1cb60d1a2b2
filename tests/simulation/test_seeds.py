"""Seeded worlds keep every invariant, are reproducible, and detect broken engines."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shiftwork.engine import idempotency, unit_of_work
from shiftwork.fairness import serial_keys
from shiftwork.limits import admission
from shiftwork.maintenance.loop import JOBS
from shiftwork.model.outcome import Token
from shiftwork.operation.local import Call
from shiftwork.store.sqlite import SqliteStore
from tests.simulation.disk import Disk
from tests.simulation.kept import KEPT
from tests.simulation.world import run

SEEDS = 20
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("seed", [*range(SEEDS), *KEPT])
def test_every_invariant_holds_in_the_world_of_a_seed(seed: int) -> None:
    found = run(seed)
    assert found.wrong is None, "\n".join([*found.log[-60:], found.wrong])
    assert found.checks > 2


def test_same_seed_gives_the_same_events_in_another_process() -> None:
    """Even with another hash seed; the digest includes every statement with its values."""
    here = run(5)
    program = "from tests.simulation.world import run; found = run(5); print(found.digest, *found.log, sep='\\n')"
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.splitlines() == [here.digest, *here.log]
    assert len(here.log) > 50
    assert here.faults


Break = Callable[[pytest.MonkeyPatch], None]


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    """Accept a write under an old claim."""
    tokens = Call.tokens

    async def present(call: Call, asked: Sequence[Any]) -> list[Any]:
        found = await tokens(call, asked)
        ids = [(token.id,) for token in found if isinstance(token, Token)]
        rows = await call.read(lambda tx: tx.all("read_tasks", items=ids))
        fences = {row["id"]: row["fence"] for row in rows}
        return [token._replace(fence=fences.get(token.id, 0)) if isinstance(token, Token) else token for token in found]

    patch.setattr(Call, "tokens", present)


def _answer_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Answer as if a failed commit had succeeded."""
    alone = SqliteStore._run_alone

    def run_alone(store: SqliteStore, job: Any) -> None:
        alone(store, job)
        if job.error is not None and "injected" in str(job.error) and job.result is not None:
            job.error = None

    patch.setattr(SqliteStore, "_run_alone", run_alone)


def _forget_requests(patch: pytest.MonkeyPatch) -> None:
    """Execute a repeated request again."""

    async def again(_workspace: Any, _request: Any, _step: Any, _kind: Any, verb: Any, tx: Any) -> Any:
        return await verb(tx)

    patch.setattr(idempotency, "run_idempotently", again)


def _ignore_serial_keys(patch: pytest.MonkeyPatch) -> None:
    async def admit(_work: Any, _lanes: Any, rows: Any) -> Any:
        return rows

    patch.setattr(serial_keys, "admit", admit)


def _ignore_limits(patch: pytest.MonkeyPatch) -> None:
    async def within(_work: Any, _gates: Any, rows: Any, _models: Any) -> Any:
        return rows

    patch.setattr(admission, "_within_limits", within)


def _never_reclaim(patch: pytest.MonkeyPatch) -> None:
    async def reclaim(_tx: Any, _engine: Any) -> dict[str, int]:
        return {}

    patch.setitem(JOBS, "reclaim", JOBS["reclaim"]._replace(run=reclaim))


def _forget_an_event(patch: pytest.MonkeyPatch) -> None:
    save = unit_of_work.UnitOfWork.save_events

    async def save_some(work: Any) -> None:
        work._events = [event for event in work._events if "failed" not in str(event)]
        await save(work)

    patch.setattr(unit_of_work.UnitOfWork, "save_events", save_some)


@pytest.mark.parametrize(
    ("broken", "features"),
    [
        (_no_fence, ()),
        (_answer_before_the_commit, ()),
        (_forget_requests, ()),
        (_ignore_serial_keys, ("serial",)),
        (_ignore_limits, ("limits",)),
        (_never_reclaim, ()),
        (_forget_an_event, ()),
    ],
)
def test_broken_engine_is_detected(broken: Break, features: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    tried = (run(seed, features).wrong for seed in range(30))
    assert any(wrong is not None for wrong in tried), "thirty worlds lived with it"


def test_a_seed_rarely_prepares_a_statement_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a thousand seeds take minutes longer."""
    found: list[dict[str, int]] = []
    close = Disk.close

    def count(disk: Disk) -> None:
        found.append(disk.connection.cache_stats())
        close(disk)

    monkeypatch.setattr(Disk, "close", count)
    assert run(2).wrong is None
    (stats,) = found
    assert stats["misses"] < 0.2 * stats["hits"]
