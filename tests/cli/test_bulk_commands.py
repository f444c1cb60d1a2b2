"""Tasks are found, and changed by conditions, at the command line; short ids are taken where ids are."""

import pytest

from shiftwork import Queue
from tests.cli.terminal import Terminal


def fill(terminal: Terminal, count: int = 3, type_: str = "code") -> list[str]:
    async def make(queue: Queue) -> list[str]:
        made = await queue.submit_many([{"type": type_, "title": f"Flaky login {n}"} for n in range(count)])
        return [each.id for each in made]

    return terminal.on_queue(make)


def test_short_id_is_taken_by_commands(each_terminal: Terminal) -> None:
    terminal = each_terminal
    (task,) = fill(terminal, 1)
    short = task[-8:]
    assert terminal.json("show", short)["id"] == task
    assert terminal.json("explain", f"…{task[-6:]}")["task_id"] == task
    assert task in terminal.text("update", short, "--priority", "3")
    assert task in terminal.text("cancel", short.lower())
    unknown = terminal.run("show", "ZZZZZZ")
    assert (unknown.code, unknown.err) == (
        3,
        "error: there is no task 'ZZZZZZ'. Check the id and the workspace.\n",
    )


def test_ambiguous_short_id_lists_whole_ids(each_terminal: Terminal) -> None:
    for n in range(2):
        each_terminal.text("submit", "code", "--id", f"task_01M7P49T8CE06RHX9N{n:02d}ABCDEF")
    refused = each_terminal.run("show", "ABCDEF")
    assert refused.code == 3
    assert refused.err.startswith(
        "error: the ids of 2 tasks end in 'ABCDEF'. Give the whole id: task_01M7P49T8CE06RHX9N00ABCDEF, "
    )
    assert each_terminal.json("show", "01ABCDEF")["id"] == "task_01M7P49T8CE06RHX9N01ABCDEF"


def test_search_finds_newest_first_and_says_when_nothing_matches(each_terminal: Terminal) -> None:
    made = fill(each_terminal)
    found = each_terminal.json("search", "flaky", "log")
    assert [task["id"] for task in found["tasks"]] == made[::-1]
    assert [task["id"] for task in each_terminal.json("list", "--search", "login 1")["tasks"]] == [made[1]]
    assert each_terminal.text("search", "nowhere") == "no tasks match\n"


def test_states_are_listed_with_commas(terminal: Terminal) -> None:
    fill(terminal)
    terminal.text("cancel", fill(terminal, 1)[0])
    assert len(terminal.json("list", "--status", "ready,cancelled")["tasks"]) == 4
    assert len(terminal.json("list", "--status", "ready", "--status", "cancelled")["tasks"]) == 4


def test_bulk_change_counts_and_asks_for_confirmation(each_terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = each_terminal
    fill(terminal)
    fill(terminal, 1, "other")
    refused = terminal.run("cancel", "--status", "ready", "--type", "code")
    assert refused.code == 2
    assert refused.err.startswith("error: This cancels 3 tasks (3 ready). Pass --yes to confirm (at shiftwork cancel).")
    assert terminal.run("cancel", "--type", "code", "--json").code == 2
    assert terminal.text("cancel", "--type", "code", "--dry-run") == "This cancels 3 tasks (3 ready)\n"
    monkeypatch.setattr("shiftwork.cli.params.is_typed_at", lambda: True)
    asked = terminal.run("cancel", "--type", "code", stdin="n\n")
    assert (asked.code, terminal.json("status")["counts"]) == (1, {"ready": 4})
    assert "This cancels 3 tasks (3 ready). Continue?" in asked.err
    assert terminal.text("cancel", "--type", "code", stdin="y\n").endswith("3 cancelled\n")
    assert terminal.json("status")["counts"] == {"ready": 1, "cancelled": 3}


def test_dead_letters_are_retried_and_priorities_set(each_terminal: Terminal) -> None:
    terminal = each_terminal
    dead, ready = terminal.dead(), terminal.ready()
    assert terminal.text("retry", "--failure-reason", "crash", "--yes") == "1 retried\n"
    assert terminal.json("show", dead)["status"] == "ready"
    assert terminal.text("priority", "7", "--tag", "web", "--yes") == "1 changed\n"
    assert terminal.json("show", ready)["priority"] == 7
    refused = terminal.run("retry", ready, dead)
    assert refused.code == 4
    assert "is ready, not a dead letter" in refused.err
    assert "not a dead letter. Use rerun to repeat a task that has ended." in terminal.run("retry", terminal.done()).err


def test_purge_by_search_removes_what_matches(terminal: Terminal) -> None:
    fill(terminal)
    terminal.ready()
    done = terminal.json("purge", "--search", "flaky", "--yes")
    assert (done["changed"], done["counts"]) == (3, {"ready": 3})
    assert terminal.json("status")["counts"] == {"ready": 1, "cancelled": 3}
