"""A worker runs the tests of its tasks in their folder, and submits the verdict with the result."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Done, Queue, Worker
from shiftwork.model.task import Verdict
from shiftwork.worker import Context
from shiftwork.worker.delivery import Summary
from tests.worker.command_runner import alive, ask, desk_on
from tests.worker.steps import at_work, until


def checked_by(command: Any, **more: Any) -> dict[str, Any]:
    return {"type": "code", "validation": "test-pass", "validation_schema": {"command": command, **more}}


async def verdict_on(queue: Queue, task_id: str) -> Verdict:
    (attempt,) = await queue.tasks.attempts(task_id)
    assert attempt.verdict is not None
    return attempt.verdict


def coder(folder: Path, **options: Any) -> Worker:
    """Writes one file into a folder that it pins."""
    worker = Worker("coder", **{"run_tests": True, **options})

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        await ctx.pin_session(work_dir=str(folder))
        (folder / "answer").write_text(str(ctx.payload.get("answer", "")))
        return "a patch"

    return worker


async def test_runner_can_refuse_to_run_tests_of_submitters(shop: Queue, store_url: str, tmp_path: Path) -> None:
    with desk_on(store_url, tmp_path) as mcp_server:
        task = await ask(shop, "x", output=checked_by(f"touch {tmp_path}/ran"))
        mcp_server.run(["echo", "made"], "--no-test-pass")
    assert (await shop.get(task)).status == "validating"
    assert not (tmp_path / "ran").exists()


@pytest.mark.requirement("F-234")
@pytest.mark.parametrize("command", ["grep -q 42 answer && echo right || { echo wrong; exit 3; }"])
async def test_tests_run_in_the_folder_of_the_work(shop: Queue, store_url: str, tmp_path: Path, command: str) -> None:
    right, wrong = [
        (await shop.submit(type="code", payload={"answer": answer}, output=checked_by(command))).id
        for answer in (42, 41)
    ]
    summary = await coder(tmp_path, concurrency=1).run(store_url, until_idle=True)
    assert (summary.completed, summary.failed) == (1, 1)
    assert (await shop.get(right)).status == "completed"
    passed, failed = await verdict_on(shop, right), await verdict_on(shop, wrong)
    assert (passed.passed, passed.by) == (True, "agent:coder")
    assert passed.evidence is not None
    assert (passed.evidence["exit_code"], passed.evidence["output"]) == (0, "right\n")
    assert passed.evidence["command"] == command
    assert passed.evidence["duration_sec"] >= 0
    task = await shop.get(wrong)
    assert (task.status, task.failure_reason) == ("retrying", "invalid_output")
    assert task.last_error == "the tests did not pass: exit code 3"
    assert failed.evidence is not None
    assert failed.evidence["output"] == "wrong\n"


async def test_command_list_is_run_without_a_shell(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", output=checked_by(["printf", "%s|", "a b", "$HOME"]))
    await coder(tmp_path).run(store_url, until_idle=True)
    verdict = await verdict_on(shop, made.id)
    assert verdict.evidence is not None
    assert verdict.evidence["output"] == "a b|$HOME|"


async def test_only_the_end_of_a_long_output_is_kept(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", output=checked_by("seq 100000; printf '\\000end'; exit 1"))
    await coder(tmp_path).run(store_url, until_idle=True)
    verdict = await verdict_on(shop, made.id)
    assert verdict.evidence is not None
    output = verdict.evidence["output"]
    assert output.endswith("100000\nend")
    assert 65_000 < len(output.encode()) <= 65_536


async def test_tests_over_their_time_limit_end_with_all_processes(shop: Queue, store_url: str, tmp_path: Path) -> None:
    line = "echo $$ > leader; sleep 1000 & echo $! > child; wait"
    made = await shop.submit(type="code", output=checked_by(line, timeout_sec=0.5))
    await coder(tmp_path).run(store_url, until_idle=True)
    verdict = await verdict_on(shop, made.id)
    assert (verdict.passed, verdict.reasons) == (False, ["the tests were ended after 1s"])
    await until(lambda: not any(lives(tmp_path / name) for name in ("leader", "child")))


def lives(file: Path) -> bool:
    """Whether the process whose number is in the file runs."""
    try:
        return alive(int(file.read_text()))
    except (OSError, ValueError):
        return False


async def test_cancelled_task_ends_its_tests(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", output=checked_by("echo $$ > leader; sleep 1000"))
    async with at_work(coder(tmp_path), store_url):
        await until((tmp_path / "leader").exists)
        await until(lambda: lives(tmp_path / "leader"))
        await shop.cancel(made.id)
        await until(lambda: not lives(tmp_path / "leader"))
    assert (await shop.get(made.id)).status == "cancelled"


async def test_stopped_worker_releases_the_task_and_ends_its_tests(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", output=checked_by("echo $$ > leader; sleep 1000"))
    worker = coder(tmp_path, stop_grace_sec=0)
    running = asyncio.create_task(worker.run(store_url))
    await until(lambda: lives(tmp_path / "leader"))
    worker.stop()
    summary: Summary = await running
    assert (summary.released, (await shop.get(made.id)).status) == (1, "ready")
    assert not lives(tmp_path / "leader")


async def test_execution_limit_includes_the_tests(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", timeout_sec=1, output=checked_by("sleep 1000"))
    await coder(tmp_path).run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert task.attempts == 1
    assert task.failure_reason in {"invalid_output", "timeout"}


@pytest.mark.parametrize("command", ["no-such-program-here", ["no-such-program-here"]])
async def test_missing_test_command_is_a_failed_verdict(
    shop: Queue, store_url: str, tmp_path: Path, command: Any
) -> None:
    made = await shop.submit(type="code", output=checked_by(command))
    await coder(tmp_path).run(store_url, until_idle=True)
    assert (await verdict_on(shop, made.id)).passed is False
    assert (await shop.get(made.id)).failure_reason == "invalid_output"


async def test_missing_test_folder_is_a_failed_verdict(shop: Queue, store_url: str) -> None:
    made = await shop.submit(type="code", work_dir="/no/such/folder", output=checked_by("true"))
    worker = Worker("coder", run_tests=True)
    worker.handler("code")(lambda _: 1)
    await worker.run(store_url, until_idle=True)
    assert "cannot be started" in (await verdict_on(shop, made.id)).reasons[0]


async def test_handler_can_run_its_tests_itself(shop: Queue, store_url: str) -> None:
    made = await shop.submit(type="code", output=checked_by("exit 1"))
    worker = Worker("coder")
    worker.handler("code")(lambda _: Done("patch", verdict={"passed": True, "evidence": {"suite": "own"}}))
    summary = await worker.run(store_url, until_idle=True)
    assert summary.completed == 1
    assert (await verdict_on(shop, made.id)).evidence == {"suite": "own"}


async def test_worker_without_tests_leaves_the_verdict_open(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", output=checked_by(f"touch {tmp_path}/ran"))
    worker = Worker("coder")
    worker.handler("code")(lambda _: "a patch")
    summary = await worker.run(store_url, until_idle=True)
    assert (summary.validating, summary.failed) == (1, 0)
    task = await shop.get(made.id)
    assert task.status == "validating"
    assert not (tmp_path / "ran").exists()
    assert (await shop.claims.verdict(task.claim.assignment_id or "", passed=True)).status == "completed"


async def test_worker_can_judge_output_of_another(shop: Queue, store_url: str) -> None:
    made = await shop.submit(type="essay", output={"validation": "llm-judge", "validation_schema": "Is it long?"})
    author = Worker("author")
    author.handler("essay")(lambda _: "a long essay")
    assert (await author.run(store_url, until_idle=True)).validating == 1
    critic = Worker("critic", capabilities=["judge"])

    @critic.handler("judge")
    def judge(ctx: Context) -> dict[str, str]:
        return {"verdict": "accept" if "long" in ctx.payload["output"]["data"] else "reject"}

    assert (await critic.run(store_url, until_idle=True)).completed == 1
    assert (await shop.get(made.id)).status == "completed"


async def test_handler_submits_its_decision_report(shop: Queue, store_url: str) -> None:
    await shop.settings.set("require_decision_report", True)
    made = await shop.submit(type="code")
    worker = Worker("coder")
    worker.handler("code")(lambda _: Done("patch", decision_report={"why": "as asked"}))
    await worker.run(store_url, until_idle=True)
    result = await shop.result(made.id)
    assert (result.status, result.decision_report) == ("success", {"why": "as asked"})


async def test_result_without_required_report_fails_the_attempt(shop: Queue, store_url: str) -> None:
    await shop.settings.set("require_decision_report", True)
    made = await shop.submit(type="code")
    worker = Worker("coder")

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        ctx.spent(cost_usd=0.5)
        return "patch"

    summary = await worker.run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert (task.status, task.failure_reason, task.cost_usd) == ("retrying", "invalid_output", 0.5)
    assert (summary.failed, summary.completed) == (1, 0)
    assert str(task.last_error).startswith("report_required")


async def test_tests_of_agent_work_run_in_its_folder(shop: Queue, store_url: str, tmp_path: Path) -> None:
    with desk_on(store_url, tmp_path) as mcp_server:
        task = await ask(shop, "x", output=checked_by("pwd; grep 42 answer"))
        mcp_server.run(["sh", "-c", "echo 42 > answer"])
        verdict = await verdict_on(shop, task)
    assert verdict.evidence is not None
    assert (verdict.passed, verdict.evidence["output"]) == (True, f"{mcp_server.work_dir / task}\n42\n")


async def test_tests_do_not_outlive_a_killed_runner(shop: Queue, store_url: str, tmp_path: Path) -> None:
    with desk_on(store_url, tmp_path) as mcp_server:
        task = await ask(shop, "x", output=checked_by("echo $$ > leader; sleep 1000 & echo $! > child; wait"))
        runner = mcp_server.start(["true"])
        files = [mcp_server.work_dir / task / name for name in ("leader", "child")]
        await until(lambda: all(map(lives, files)))
        runner.kill()
        await until(lambda: not any(map(lives, files)))
