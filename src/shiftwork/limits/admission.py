"""Admission: which picked tasks pass half-open breakers and limits, each with its model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from shiftwork.engine.lanes import Lane
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.fairness import serial_keys
from shiftwork.limits import breakers, rate_limits
from shiftwork.limits.gates import Gates
from shiftwork.store.store import Row


class Admitted(NamedTuple):
    rows: list[Row]
    models: dict[str, str]
    """The model of each task that restricts its models."""


async def admit(work: UnitOfWork, gates: Gates, lanes: Sequence[Lane], chosen: list[Row]) -> Admitted:
    """Admit the tasks that may run now. The others stay where they are, for other claims or later."""
    models = _models(gates, lanes, chosen)
    in_turn = await serial_keys.admit(work, lanes, chosen)
    rows, changes = await _on_trial(work, gates, in_turn)
    rows = await _within_limits(work, gates, rows, models)
    if len(rows) < len(in_turn):
        await _leave(work, lanes, in_turn, rows)
    if changes:
        await breakers.save(work, dict(changes[row["id"]] for row in rows if row["id"] in changes))
    handed = {row["id"]: models[row["id"]] for row in rows if row["id"] in models} if models else {}
    if handed:
        items = [(row["id"], row["fence"] + 1, handed[row["id"]]) for row in rows if row["id"] in handed]
        await work.tx.run("save_claim_models", items=sorted(items))
    return Admitted(rows, handed)


async def _leave(work: UnitOfWork, lanes: Sequence[Lane], in_turn: Sequence[Row], rows: Sequence[Row]) -> None:
    """Release the serial keys of tasks that a breaker or a limit refused."""
    admitted = {row["id"] for row in rows}
    serial = {lane.id for lane in lanes if lane.key.serial is not None}
    if left := [row for row in in_turn if row["id"] not in admitted and row["lane"] in serial]:
        await serial_keys.undo(work, left)


def _models(gates: Gates, lanes: Sequence[Lane], chosen: Sequence[Row]) -> dict[str, str]:
    by_id = {lane.id: lane for lane in lanes if lane.key.models or lane.key.mixed}
    if not by_id:
        return {}
    found = {row["id"]: gates.model_for(row, by_id[row["lane"]]) for row in chosen if row["lane"] in by_id}
    return {id_: model for id_, model in found.items() if model is not None}


async def _on_trial(
    work: UnitOfWork, gates: Gates, chosen: list[Row]
) -> tuple[list[Row], dict[str, tuple[breakers.Name, breakers.Change]]]:
    if not gates.on_trial:
        return chosen, {}
    trials: dict[breakers.Name, list[Row]] = defaultdict(list)
    for row in chosen:
        if row["type"] in gates.on_trial:
            trials[row["workspace"], row["type"]].append(row)
    if not trials:
        return chosen, {}
    may_go = await breakers.admit_trials(work, trials)
    rows = [row for row in chosen if row["type"] not in gates.on_trial or row["id"] in may_go]
    return rows, {id_: change for id_, change in may_go.items() if change is not None}


async def _within_limits(work: UnitOfWork, gates: Gates, rows: list[Row], models: dict[str, str]) -> list[Row]:
    wanted = []
    for row in rows if gates.limits else ():
        use = gates.use(row["type"], models.get(row["id"]))
        wanted.append((row, [key for key in gates.limits if key.covers(use)]))
    if not any(of for _, of in wanted):
        return rows
    admitted = await rate_limits.take(work, rows[0]["workspace"], wanted)
    return [row for row in rows if row["id"] in admitted]
