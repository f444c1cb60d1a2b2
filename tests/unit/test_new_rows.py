"""A record's fields are the columns of the statement that writes it: a value in the wrong column is found here."""

from typing import Any

import msgspec
import pytest

from shiftwork.budgets.membership import NewBudget
from shiftwork.engine.new_rows import NewAlert, NewAttempt, NewDag, NewDeadLetter, NewEdge
from shiftwork.engine.rows import TaskRow, places_of_id, to_insert, to_save
from shiftwork.store.catalogue import tables
from shiftwork.store.statements import columns_of
from shiftwork.waits.schedule import StoredWait

WRITTEN = {
    "insert_attempts": NewAttempt,
    "insert_dead_letters": NewDeadLetter,
    "insert_alerts": NewAlert,
    "insert_dags": NewDag,
    "insert_edges": NewEdge,
    "insert_waits": StoredWait,
    "insert_budgets": NewBudget,
}


@pytest.mark.parametrize("statement", WRITTEN)
def test_fields_of_a_record_are_the_columns_of_its_statement(statement: str) -> None:
    record: Any = WRITTEN[statement]
    assert record._fields == columns_of(statement)


def test_task_row_has_the_columns_of_its_table() -> None:
    """Except for two columns that only SQL reads and writes."""
    (tasks,) = (table for table in tables() if table.name == "tasks")
    fields = {field.name for field in msgspec.structs.fields(TaskRow)}
    assert fields == set(tasks.names) - {"holder", "passed_deadline"}


@pytest.mark.parametrize(("statement", "values"), [("insert_tasks", to_insert), ("save_tasks", to_save)])
def test_values_of_a_row_are_in_the_order_of_the_statement(statement: str, values: Any) -> None:
    names = [field.name for field in msgspec.structs.fields(TaskRow)]
    row: Any = TaskRow(**{name: name for name in names})  # type: ignore[arg-type]  # each value names its column
    assert values(row) == columns_of(statement)


def test_places_of_the_id_are_those_of_a_standalone_task() -> None:
    assert [columns_of("insert_tasks")[place] for place in places_of_id()] == ["id", "dag_id", "root_id"]
