"""Budgets and costs from the shell."""

from tests.cli.terminal import Terminal


def test_dag_held_by_budget_is_shown_and_released(each_terminal: Terminal) -> None:
    dag = '{"tasks": [{"type": "code", "estimated_cost_usd": 0.5}], "budget_ceiling_usd": 0.2}'
    made = each_terminal.json("submit", "--file", "-", stdin=dag)
    assert each_terminal.run("claim", "--agent", "ada").out == ""
    header, row = each_terminal.text("budgets").splitlines()
    assert header.split() == ["budget", "of", "ceiling", "spent", "granted", "left"]
    assert row.split()[0] == "dag"
    assert row.endswith("holds work back")
    dag_id = each_terminal.json("budgets", "list", "--kind", "dag")[0]["id"]
    assert dag_id in str(made)
    changed = each_terminal.json("budgets", "set", "dag", dag_id, "--ceiling", "0.75")
    assert (changed["ceiling_usd"], changed["remaining_usd"]) == (0.75, 0.75)
    assert each_terminal.text("claim", "--agent", "ada").strip()
    assert each_terminal.json("budgets", "set", "dag", dag_id, "--no-ceiling")["ceiling_usd"] is None


def test_costs_are_shown_by_group(each_terminal: Terminal) -> None:
    each_terminal.text("submit", "code", "--tree-budget", "2")
    token = each_terminal.json("claim", "--agent", "ada", "--start")["assignments"][0]["token"]
    each_terminal.text("complete", token, "--cost", "0.12", "--tokens-in", "900", "--on-model", "large")
    done = each_terminal.run("costs", "--by", "model", "--since", "1h")
    assert done.out.splitlines()[1].split() == ["large", "$0.12", "1", "900", "0"]
    assert done.err == "$0.12 in all, $0.12 today (UTC)\n"
    output = each_terminal.json("costs", "--by", "agent")
    assert [(cost["value"], cost["cost_usd"]) for cost in output["costs"]] == [("ada", 0.12)]
    assert output["daily_spend_usd"] == 0.12


def test_invalid_budget_command_is_refused(terminal: Terminal) -> None:
    terminal.text("submit", "code")
    for line, stated in {
        "budgets set day": "give either --ceiling or --no-ceiling",
        "budgets set day --ceiling 1 --no-ceiling": "give either --ceiling or --no-ceiling",
        "budgets set day monday --ceiling 1": "leave the id out",
        "budgets set dag --ceiling 1": "which dag? Give its id",
    }.items():
        done = terminal.run(*line.split())
        assert (done.code, stated in done.err) == (2, True), (line, done.err)
    assert terminal.json("budgets") == []


def test_daily_budget_is_set_and_removed(terminal: Terminal) -> None:
    terminal.text("submit", "code")
    assert terminal.json("budgets", "set", "day", "--ceiling", "0")["remaining_usd"] == 0
    assert terminal.run("claim", "--agent", "ada").out == ""
    terminal.text("budgets", "set", "day", "--no-ceiling")
    assert terminal.text("claim", "--agent", "ada").strip()
