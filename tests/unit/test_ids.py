"""Ids that sort by creation, and their two written forms."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from shiftwork.model import ids
from shiftwork.model.ids import IdMaker

NOW = 1_790_000_000.0


@given(noise=st.binary(min_size=9, max_size=9), counts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_each_id_is_greater_than_all_before(noise: bytes, counts: list[int]) -> None:
    """For any random bits, and when the clock steps back."""
    maker = IdMaker(lambda _: noise)
    made = [id_ for place, count in enumerate(counts) for id_ in maker.make_many(NOW - place, count)]
    assert made == sorted(set(made))
    assert all(uuid.UUID(id_).version == 7 and str(uuid.UUID(id_)) == id_ for id_ in made)


def test_incrementing_an_id_carries_over_every_group() -> None:
    made = IdMaker(lambda count: b"\xff" * count).make_many(NOW, 3)
    assert [id_[-17:] for id_ in made] == ["bfff-ffffffffffff", "8000-000000000000", "8000-000000000001"]
    assert made == sorted(made)


@given(st.uuids())
def test_shown_id_is_parsed_back(id_: uuid.UUID) -> None:
    shown = ids.show_task(str(id_))
    assert len(shown) == len("task_") + 26
    assert ids.parse(shown) == ids.parse(shown.lower()) == ids.parse(str(id_)) == str(id_)
    assert ids.show_dag(str(id_)) == shown.replace("task_", "dag_")


@given(st.lists(st.uuids()))
def test_ids_of_a_batch_are_shown_as_each_alone(batch: list[uuid.UUID]) -> None:
    assert ids.show_tasks(map(str, batch)) == [ids.show_task(str(id_)) for id_ in batch]
