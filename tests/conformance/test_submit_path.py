"""The path of a submission: the call depth of its first statement, and how often fields are checked."""

import traceback
from typing import Any

import msgspec
import pytest

from shiftwork import NewTask, Queue
from shiftwork.model.task import TaskFields
from shiftwork.store.store import Tx

MAX_FRAMES = 8
STATEMENTS = ("all", "one", "run", "insert")


class Reached(Exception):
    """The first statement."""


def refuse_statements(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each statement raise, so that the traceback has every frame above it."""
    store, run = queue.engine.store, queue.engine.store.run

    async def run_refusing(verb: Any, /) -> Any:
        def refusing(tx: Tx) -> Any:
            for name in STATEMENTS:
                statement = getattr(tx, name)

                def refuse(name: str, rows: Any = None, /, _statement: Any = statement, **_: Any) -> Any:
                    if rows == []:
                        return _statement(name, rows)  # which sends nothing
                    raise Reached(name)

                monkeypatch.setattr(type(tx), name, staticmethod(refuse))
            return verb(tx)

        return await run(refusing)

    monkeypatch.setattr(store, "run", run_refusing)


async def test_the_first_statement_is_few_frames_from_submit(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of the store and of this test do not count."""
    await queue.submit(type="code")
    refuse_statements(queue, monkeypatch)
    with pytest.raises(Reached) as reached:
        await queue.submit(type="code")
    frames = [frame for frame in traceback.extract_tb(reached.value.__traceback__) if "/shiftwork/" in frame.filename]
    ours = [f"{frame.filename}:{frame.name}" for frame in frames if "/shiftwork/store/" not in frame.filename]
    assert ours[0].endswith("engine/api.py:submit")
    assert len(ours) <= MAX_FRAMES, "\n".join(ours)


async def test_a_task_is_checked_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    convert = msgspec.convert

    def counting(value: Any, kind: Any, **options: Any) -> Any:
        if kind is NewTask:
            read.append(value)
        return convert(value, kind, **options)

    monkeypatch.setattr(msgspec, "convert", counting)
    await queue.submit(type="code", priority=5)
    await queue.submit(NewTask(type="code"))
    await queue.submit_many([{"type": "code"}, NewTask(type="docs")])
    assert [task["type"] for task in read] == ["code", "code", "code", "docs"]


def test_the_keyword_arguments_of_submit_are_the_fields_of_a_task() -> None:
    assert sorted(TaskFields.__annotations__) == sorted(NewTask.__struct_fields__)
