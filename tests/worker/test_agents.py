"""Commands as agents, in real processes: their input, their output, and how they end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from tests.client.serving import served
from tests.worker.command_runner import CommandRunner, alive, ask, begun, desk_on, messages
from tests.worker.steps import PATIENCE_SEC, until, until_status

KILLED = ["--kill-after", "0.2"]


@pytest.fixture
def commands(store_url: str, tmp_path: Path) -> Iterator[CommandRunner]:
    with desk_on(store_url, tmp_path) as made:
        yield made


async def test_command_gets_its_task_and_its_output_is_the_result(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "say hello", title="Greet", payload={"n": 1})
    script = 'cat > given.json; printf "%s\\n" "$SHIFTWORK_PROMPT" "$SHIFTWORK_TASK_ID" "$SHIFTWORK_TYPE" "$PWD"'
    commands.run(["sh", "-c", script + '; cmp given.json "$SHIFTWORK_TASK_FILE"'])
    done = await shop.get(task)
    folder = commands.work_dir / task
    assert done.result is not None
    assert done.result.text == f"say hello\n{task}\ncode\n{folder}"
    assert done.work_dir == str(folder)
    given = json.loads((folder / "given.json").read_text())
    assert (given["id"], given["payload"], given["spec"]["prompt"]) == (task, {"n": 1}, "say hello")
    assert [path.name for path in commands.work_dir.iterdir() if not path.name.startswith(".")] == [task]
    assert list((commands.work_dir / ".runs").iterdir()) == []


async def test_placeholders_are_filled_without_a_shell(shop: Queue, commands: CommandRunner) -> None:
    prompt = 'two words; $(touch gone) "quoted"'
    task = await ask(shop, prompt)
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    commands.run([sys.executable, "-c", show, "{prompt}", "--id={task_id}", "{unknown}"], "--output", "text")
    result = await shop.result(task)
    assert json.loads(result.text or "") == [prompt, f"--id={task}", "{unknown}"]


async def test_printed_object_becomes_data_with_its_cost(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "x")
    found = {"text": "fine", "n": [1], "cost_usd": 0.5, "usage": {"input_tokens": 3, "output_tokens": 4}}
    commands.run(["echo", json.dumps({**found, "session_id": "S"})], "--output", "json")
    done = await shop.get(task)
    assert done.result is not None
    assert (done.result.text, done.result.data["n"], done.cost_usd) == ("fine", [1], 0.5)
    assert (done.tokens_used["input"], done.tokens_used["output"], done.session_id) == (3, 4, "S")


async def test_agent_events_are_reported_and_session_is_pinned_while_running(
    shop: Queue, commands: CommandRunner
) -> None:
    task = await ask(shop, "family")
    runner = commands.start_agent(*KILLED)
    await begun(shop, commands, task)
    await until(lambda: _pinned(shop, task))
    running = await shop.get(task)
    assert (running.status, running.work_dir) == ("running", str(commands.work_dir / task))
    assert (commands.work_dir / task / ".sessions" / str(running.session_id)).exists()
    await until(lambda: _booked(shop, task))
    await shop.cancel(task)
    runner.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(runner.wait, PATIENCE_SEC) == 0


async def _pinned(queue: Queue, task_id: str) -> bool:
    return (await queue.get(task_id)).session_id is not None


async def _booked(queue: Queue, task_id: str) -> bool:
    return (await queue.get(task_id)).tokens_used["input"] > 0


async def test_agent_result_cost_and_messages_are_stored(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "work")
    commands.run_agent()
    done = await shop.get(task)
    assert done.result is not None
    assert (done.status, done.result.text, done.cost_usd) == ("completed", "done in turn 1", 0.25)
    assert (done.tokens_used["input"], done.tokens_used["output"]) == (110, 100)
    assert await messages(shop, task) == [("text", "turn 1"), ("tool_call", "Bash")]


async def test_flood_of_output_is_stored_in_few_messages(shop: Queue, commands: CommandRunner) -> None:
    agent, noise = await ask(shop, "flood"), await ask(shop, "x", max_attempts=1)
    commands.run_agent("--concurrency", "1")
    found = await messages(shop, agent)
    assert (await shop.get(agent)).status == "completed"
    assert len(found) < 100
    assert max(len(text) for _, text in found) <= 4_000
    assert any("characters left out" in text for _, text in found)
    assert (await shop.get(noise)).status == "completed"


async def test_output_over_the_limit_fails_with_clear_reason(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "x", max_attempts=1)
    commands.run(["sh", "-c", "head -c 200000000 /dev/zero | tr '\\0' 'x'"])
    failed = await shop.get(task)
    assert failed.failure_reason == "invalid_output"
    assert "it printed a line longer than" in str(failed.last_error)
    assert len(await messages(shop, task)) < 100


async def test_result_over_the_queue_limit_fails_with_clear_reason(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "x", max_attempts=1)
    commands.run(["sh", "-c", "head -c 9000000 /dev/zero | tr '\\0' 'x'"])
    failed = await shop.get(task)
    assert failed.failure_reason == "invalid_output"
    assert "8388608" in str(failed.last_error)


async def test_invalid_bytes_in_output_are_replaced(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "x")
    commands.run(["printf", r"a\377b\000c\n"])
    assert (await shop.result(task)).text == "a�bc"


async def test_command_ignoring_a_large_stdin_does_not_fail(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "x", payload={"much": "y" * 900_000})
    commands.run(["true"])
    assert (await shop.get(task)).status == "completed"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", "agent_error"),
        ("exit 65", "invalid_input"),
        ("exit 66", "session_lost"),
        ("exit 69", "resource_unavailable"),
        ("exit 77", "auth_failure"),
        ("exit 124", "timeout"),
        ("kill -SEGV $$", "crash"),
        ("exit 139", "crash"),
    ],
)
async def test_exit_code_decides_the_failure_reason(
    shop: Queue, commands: CommandRunner, script: str, reason: str
) -> None:
    task = await ask(shop, "x", max_attempts=1)
    commands.run(["sh", "-c", f"echo printed; echo why >&2; {script}"])
    failed = await shop.get(task)
    assert failed.failure_reason == reason
    assert str(failed.last_error).endswith("\nwhy\nprinted")


async def test_rate_limit_waits_as_long_as_reported(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "limit 500")
    commands.run_agent()
    waiting = await shop.get(task)
    assert (waiting.status, waiting.failure_reason, waiting.attempts) == ("retrying", "rate_limit", 0)
    assert waiting.available_at is not None
    assert 450 < waiting.available_at - shop.now() <= 500
    assert waiting.session_id is not None


async def test_agent_reporting_failure_fails_the_task(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "max_turns", max_attempts=1)
    commands.run_agent()
    failed = await shop.get(task)
    assert (failed.failure_reason, failed.cost_usd) == ("agent_error", 0.25)
    assert "error_max_turns" in str(failed.last_error)


async def test_usage_of_a_killed_agent_is_charged(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "die", max_attempts=1)
    commands.run_agent()
    failed = await shop.get(task)
    assert (failed.failure_reason, failed.cost_usd) == ("crash", 0.25)
    assert "killed by SIGKILL" in str(failed.last_error)


async def test_command_without_promised_events_fails(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "x", max_attempts=1)
    commands.run(["echo", "hello"], "--output", "stream-json")
    failed = await shop.get(task)
    assert (failed.failure_reason, failed.last_error) == ("invalid_output", "it ended well and printed no result")


async def test_missing_command_fails_the_task(shop: Queue, commands: CommandRunner, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm -f "$0"\n')
    program.chmod(0o755)
    first, second = await ask(shop, "x"), await ask(shop, "x", max_attempts=1)
    commands.run([str(program)])
    assert (await shop.get(first)).status == "completed"
    failed = await shop.get(second)
    assert failed.failure_reason == "resource_unavailable"
    assert "cannot start" in str(failed.last_error)


async def test_retries_resume_the_session_in_the_same_folder(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "fail", max_attempts=3)
    commands.run_agent()
    (session,) = (commands.work_dir / task / ".sessions").iterdir()
    assert len(commands.agents(task)) == 3
    notes = [failure.note for failure in (await shop.get(task)).failure_history]
    assert notes == [None, None, f"session {session.name} is retired: 2 attempts that resumed it have failed"]


async def test_session_that_cannot_be_resumed_is_retired(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "break", max_attempts=3, settings={"poison": None})
    commands.run_agent()
    notes = [failure.note or "" for failure in (await shop.get(task)).failure_history]
    reasons = [failure.reason for failure in (await shop.get(task)).failure_history]
    assert reasons == ["agent_error", "session_lost", "agent_error"]
    assert notes[1].endswith("is retired: session_lost makes it unsafe to resume")


async def test_session_of_another_machine_is_not_resumed(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "work", session_id="elsewhere", work_dir="/elsewhere")
    commands.run_agent()
    done = await shop.get(task)
    assert (done.status, done.work_dir) == ("completed", str(commands.work_dir / task))


async def test_task_folder_must_be_below_the_base(shop: Queue, commands: CommandRunner, tmp_path: Path) -> None:
    (commands.work_dir / "repository").mkdir(parents=True)
    inside = await ask(shop, "x", work_dir=str(commands.work_dir / "repository"))
    outside = await ask(shop, "x", work_dir=str(tmp_path))
    notes = await ask(shop, "x", work_dir=str(commands.work_dir / ".runs"))
    commands.run(["pwd"], "--concurrency", "3")
    texts = [(await shop.result(task)).text for task in (inside, outside, notes)]
    assert texts == [str(commands.work_dir / name) for name in ("repository", outside, notes)]


async def test_tasks_sharing_a_folder_run_one_at_a_time(shop: Queue, commands: CommandRunner) -> None:
    script = "mkdir busy && echo x >> order && rmdir busy && wc -l < order"
    tasks = [await ask(shop, "x", work_dir="shared", max_attempts=1) for _ in range(4)]
    commands.run(["sh", "-c", script], "--concurrency", "4")
    assert {(await shop.result(task)).text for task in tasks} == {"1", "2", "3", "4"}


async def test_folders_are_kept_unless_clean_is_set(shop: Queue, commands: CommandRunner) -> None:
    kept = await ask(shop, "x")
    commands.run(["true"])
    cleaned, failed = await ask(shop, "x"), await ask(shop, "fail", max_attempts=1)
    await ask(shop, "x", work_dir="repository")
    commands.run(["sh", "-c", '[ "$SHIFTWORK_PROMPT" = x ]'], "--clean")
    left = [(commands.work_dir / name).exists() for name in (kept, cleaned, failed, "repository")]
    assert left == [True, False, True, True]


async def test_cancelled_task_ends_all_its_processes(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "family")
    runner = commands.start_agent(*KILLED)
    family = await begun(shop, commands, task)
    await shop.cancel(task)
    await until(lambda: not any(alive(pid) for pid in [*family, *commands.agents(task)]))
    assert runner.poll() is None
    runner.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(runner.wait, PATIENCE_SEC) == 0
    assert (await shop.get(task)).status == "cancelled"


async def test_command_over_its_time_limit_is_ended_with_all_processes(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "family", timeout_sec=1.5, max_attempts=1)
    await asyncio.to_thread(commands.run_agent, *KILLED)
    failed = await shop.get(task)
    assert failed.failure_reason == "timeout"
    assert len(commands.family(task)) == 2
    assert not any(alive(pid) for pid in [*commands.family(task), *commands.agents(task)])


async def test_processes_left_by_a_command_are_ended(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "leave")
    await asyncio.to_thread(commands.run_agent)
    assert (await shop.get(task)).status == "completed"
    assert len(commands.family(task)) == 2
    assert not any(alive(pid) for pid in commands.family(task))


@pytest.mark.requirement("A-086", "A-101")
async def test_killed_runner_leaves_no_process_and_task_resumes_its_session(
    shop: Queue, commands: CommandRunner
) -> None:
    task = await ask(shop, "family")
    runner = commands.start_agent(*KILLED)
    family = await begun(shop, commands, task)
    await until(lambda: _pinned(shop, task))
    session = (await shop.get(task)).session_id
    runner.kill()
    await until(lambda: not any(alive(pid) for pid in [*family, *commands.agents(task)]))
    await asyncio.to_thread(runner.wait)
    next_one = commands.start_agent(*KILLED)
    await until(lambda: len(commands.agents(task)) == 2)
    again = await shop.get(task)
    assert (again.session_id, again.work_dir, again.attempts) == (session, str(commands.work_dir / task), 1)
    await shop.cancel(task)
    next_one.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(next_one.wait, PATIENCE_SEC) == 0


async def test_orphans_of_killed_runner_and_keeper_are_ended_by_next_runner(
    shop: Queue, commands: CommandRunner
) -> None:
    task = await ask(shop, "family")
    runner = commands.start_agent(*KILLED)
    family = await begun(shop, commands, task)
    keeper = _keeper_of(runner.pid)
    os.kill(keeper, signal.SIGKILL)
    await until(lambda: not alive(keeper))
    runner.kill()
    await asyncio.to_thread(runner.wait)
    orphans = [*family, *commands.agents(task)]
    assert all(alive(pid) for pid in orphans)
    await shop.cancel(task)
    commands.run_agent()
    assert not any(alive(pid) for pid in orphans)
    assert "processes that an earlier runner left behind" in commands.log()


def _keeper_of(runner: int) -> int:
    """Return the runner's child process that waits for the runner's death."""
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return next(pid for pid, command in commands.items() if b"folders import keep" in command)


async def test_stopped_runner_releases_its_task_without_cost(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "hang")
    runner = commands.start_agent(*KILLED, "--stop-grace", "0")
    await until(lambda: _pinned(shop, task))
    runner.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(runner.wait, PATIENCE_SEC) == 0
    back = await shop.get(task)
    assert (back.status, back.attempts) == ("ready", 0)
    assert back.session_id is not None
    assert not any(alive(pid) for pid in commands.agents(task))


async def test_processes_of_a_fleet_share_the_work(shop: Queue, commands: CommandRunner) -> None:
    tasks = [await ask(shop, "x") for _ in range(6)]
    commands.run(["true"], "--processes", "2")
    assert [(await shop.get(task)).status for task in tasks] == ["completed"] * 6


async def test_killed_fleet_leaves_no_command_running(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "hang")
    fleet = commands.start_agent(*KILLED, "--stop-grace", "0", "--processes", "2")
    await until(lambda: _pinned(shop, task))
    fleet.kill()
    await until(lambda: not any(alive(pid) for pid in commands.agents(task)))
    await until_status(shop, task, "ready")
    assert (await shop.get(task)).attempts == 0


async def test_agent_works_through_a_server_and_calls_it_from_inside(
    shop: Queue, store_url: str, tmp_path: Path
) -> None:
    task = await ask(shop, "x")
    script = f'"{sys.executable}" -m shiftwork message "$SHIFTWORK_CLAIM" "from inside" >&2 && echo fine'
    with served(store_url) as server, desk_on(server.url, tmp_path) as mcp_server:
        mcp_server.run(["sh", "-c", script])
        agent = await ask(shop, "work")
        mcp_server.run_agent()
    assert ("text", "from inside") in await messages(shop, task)
    assert (await shop.result(task)).text == "fine"
    done = await shop.get(agent)
    assert (done.status, done.cost_usd) == ("completed", 0.25)
    assert done.session_id is not None
