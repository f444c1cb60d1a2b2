"""`shiftwork types`: schemas are saved, shown and removed, and wrong payloads are refused at the command line."""

from pathlib import Path
from typing import Any

from tests.cli.terminal import Terminal

SCHEMA = '{"type":"object","properties":{"text":{"type":"string"},"words":{"type":"integer"}},"required":["text"]}'


def test_schema_is_read_from_a_file_shown_and_enforced(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA)
    terminal.text("types", "save", "summarise", "--payload-schema", f"@{file}")
    assert "text*, words" in terminal.text("types")
    assert '"required"' in terminal.text("types", "show", "summarise")
    done = terminal.run("submit", "summarise", "--payload", "words:=3")
    assert done.code == 2
    assert '"text" is a required property' in done.err
    assert "task.payload" in done.err
    terminal.text("submit", "summarise", "--payload", "text=a", "--payload", "words:=3")
    assert terminal.json("types", "remove", "summarise") == {"name": "summarise", "removed": True}
    terminal.text("submit", "summarise")


def test_drift_is_listed(terminal: Terminal) -> None:
    async def declare(queue: Any) -> None:
        await queue.settings.set("max_attempts", 2, type="summarise")
        await queue.agents.register(id="ada")
        await queue.types.declare("ada", [{"name": "summarise", "options": {"max_attempts": 5, "concurrency": 3}}])

    terminal.on_queue(declare)
    assert "drift: summarise: max_attempts is 2 from type summarise; the code declares 5" in terminal.text("types")
    shown = terminal.text("types", "show", "summarise")
    assert "limit concurrency" in shown
    assert "drift" in shown
    settings = terminal.json("settings", "show", "max_attempts", "--type", "summarise")
    assert [each["source"] for each in settings] == ["type summarise"]
    terminal.text("settings", "unset", "max_attempts", "--type", "summarise")
    settings = terminal.json("settings", "show", "max_attempts", "--type", "summarise")
    assert [(each["value"], each["source"]) for each in settings] == [(5, "code of type summarise")]


def test_bad_schemas_are_refused(terminal: Terminal) -> None:
    for schema, words in (
        ("[]", "JSON object"),
        ('{"type":"no"}', "not a usable JSON Schema"),
        ("@nowhere", "nowhere"),
    ):
        done = terminal.run("types", "save", "summarise", "--payload-schema", schema)
        assert done.code == 2
        assert words in done.err
    assert terminal.run("types", "show", "summarise").code in {2, 3}
