"""The TypeScript client against a real server: work, failures, leases, stops, errors, and the package itself."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shiftwork import Queue
from tests.client.serving import served
from tests.packaging.typescript import Node, alternatives, built_package
from tools import typescript

pytestmark = pytest.mark.timeout(400)  # the first test of a run may fetch and build

T = TypeVar("T")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once for all processes of the run."""
    base = tmp_path_factory.getbasetemp()
    return built_package((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "typescript")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def node(package: Path, tmp_path: Path, store: str) -> Iterator[Node]:
    folder = tmp_path / "program"
    folder.mkdir()
    on_queue(store, lambda queue: queue.settings.change({"heartbeat_interval_sec": 0.2}))
    with served(store) as server:
        yield Node.using(package, folder, server.url)


def on_queue(store: str, action: Callable[[Queue], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Queue.open(store) as queue:
            return await action(queue)

    return asyncio.run(run())


def test_worker_does_tasks_and_a_client_awaits_their_results(node: Node, store: str) -> None:
    summary, result, child = node.run("""
        const worker = new Worker(client, { agentId: "ts-1", concurrency: 2 });
        worker.handle("greet", async (ctx) => {
          const words = await ctx.step("write", () => `Hello ${ctx.payload.name}`);
          await ctx.progress({ pct: 50 });
          await ctx.message("half done");
          const [child] = await ctx.spawn({ type: "archive", payload: { words } });
          ctx.spent({ cost_usd: 0.25, tokens_in: 10 });
          return { words, child: child.id };
        });
        worker.handle("archive", (ctx) => ctx.payload.words.length);
        const task = await client.submit({ type: "greet", id: "g1", payload: { name: "Ada" } });
        const waiting = client.result(task.id, { timeoutSec: 60 });
        print(await worker.run({ untilIdle: true }));
        const result = await waiting;
        print(result.data);
        print((await client.result(result.data.child)).data);
    """)
    assert summary == {"completed": 2, "failed": 0, "released": 0, "cancelled": 0, "lost": 0}
    assert result["words"] == "Hello Ada"
    assert child == len("Hello Ada")
    task = on_queue(store, lambda queue: queue.get("g1"))
    assert (task.cost_usd, task.tokens_used["input"]) == (0.25, 10)
    steps = on_queue(store, lambda queue: queue.steps.list("g1"))
    assert [(each.name, each.status) for each in steps] == [("write", "done")]


def test_step_is_done_once_although_its_task_is_retried(node: Node) -> None:
    tries, result = node.run("""
        let steps = 0, tries = 0;
        const worker = new Worker(client, { agentId: "ts-1", log: () => {} });
        worker.handle("flaky", async (ctx) => {
          await ctx.step("dear", () => ++steps);
          if (++tries === 1) throw new Error("once");
          return steps;
        });
        const retry = { strategy: "fixed", initial_delay_sec: 0.01, jitter: false };
        const task = await client.submit({ type: "flaky", retry });
        const running = worker.run();
        const result = await client.result(task.id, { timeoutSec: 60 });
        worker.stop();
        await running;
        print(tries);
        print(result.data);
    """)
    assert (tries, result) == (2, 1)


def test_error_thrown_by_a_handler_is_the_failure(node: Node, store: str) -> None:
    (summary,) = node.run("""
        const worker = new Worker(client, { agentId: "ts-1", log: () => {} });
        worker.handle("refuse", () => { throw new Fail("not mine", "auth_failure", { retry: false }); });
        worker.handle("crash", () => { throw new TypeError("a defect"); });
        const controller = new AbortController();
        worker.handle("return", () => { controller.abort(); throw new Release("later"); });
        await client.submitMany([
          { type: "refuse", id: "refuse" },
          { type: "crash", id: "crash" },
          { type: "return", id: "return", priority: 99 },
        ]);
        print(await worker.run({ signal: controller.signal }));
    """)
    assert (summary["failed"], summary["released"]) == (2, 1)
    refused, crashed, returned = (
        on_queue(store, lambda queue, name=name: queue.get(name))  # type: ignore[misc]  # bound above
        for name in ("refuse", "crash", "return")
    )
    assert (refused.status, refused.failure_history[-1].reason) == ("dead_lettered", "auth_failure")
    assert crashed.failure_history[-1].reason == "crash"
    assert "TypeError: a defect" in crashed.failure_history[-1].error
    assert (returned.status, returned.attempts) == ("ready", 0)


def test_cancelled_task_aborts_its_handler(node: Node, store: str) -> None:
    program = """
        const worker = new Worker(client, { agentId: "ts-1" });
        worker.handle("long", async (ctx) => {
          print("begun");
          await new Promise((resolve) => ctx.signal.addEventListener("abort", resolve));
          print([ctx.signal.reason.name, ctx.signal.reason.message]);
          worker.stop();
          return "too late";
        });
        await client.submit({ type: "long", id: "l1" });
        print(await worker.run());
    """
    with node.started(program) as process:
        assert _line(process) == "begun"
        on_queue(store, lambda queue: queue.cancel("l1", "not needed"))
        assert _line(process) == ["LeaseLost", "not needed"]
        assert _line(process)["cancelled"] == 1
        assert process.wait(60) == 0
    assert on_queue(store, lambda queue: queue.get("l1")).result is None


def _line(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_lost_lease_is_an_error_of_its_own(node: Node) -> None:
    (found,) = node.run("""
        await client.submit({ type: "x" });
        const { assignments: [held] } = await client.call("claims_request", { body: { agent_id: "a", start: true } });
        await client.call("release", { path: { task_id: held.task.id }, body: { token: held.token } });
        const late = client.call("complete", { path: { task_id: held.task.id }, body: { token: held.token } });
        print(await late.catch((error) => [error instanceof shiftwork.LeaseLost, error.code, error.status]));
    """)
    assert found == [True, "lease_lost", 409]


def test_sigterm_lets_the_handler_end_and_claims_no_more(node: Node, store: str) -> None:
    program = """
        const worker = new Worker(client, { agentId: "ts-1" });
        worker.handle("long", async (ctx) => {
          const stopped = new Promise((resolve) => process.once("SIGTERM", resolve));
          print("begun");
          await stopped;
          return "finished";
        });
        await client.submitMany([{ type: "long", id: "first" }, { type: "long", id: "second" }]);
        print(await worker.run());
    """
    with node.started(program) as process:
        assert _line(process) == "begun"
        process.send_signal(signal.SIGTERM)
        assert _line(process)["completed"] == 1
        assert process.wait(60) == 0
    done = [on_queue(store, lambda queue, name=name: queue.get(name)) for name in ("first", "second")]  # type: ignore[misc]  # bound above
    assert [each.status for each in done] == ["completed", "ready"]
    (agent,) = on_queue(store, lambda queue: queue.agents.list())
    assert agent.status == "offline"


def test_handler_that_does_not_end_is_released(node: Node, store: str) -> None:
    (summary,) = node.run("""
        const worker = new Worker(client, { agentId: "ts-1", stopGraceMs: 50 });
        worker.handle("endless", async (ctx) => {
          setTimeout(() => worker.stop(), 10);
          await new Promise((_, reject) => ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason)));
        });
        await client.submit({ type: "endless", id: "e1" });
        print(await worker.run());
    """)
    assert summary["released"] == 1
    task = on_queue(store, lambda queue: queue.get("e1"))
    assert (task.status, task.attempts) == ("ready", 0)


def test_stop_while_a_claim_waits_leaves_nothing_claimed(node: Node, store: str) -> None:
    (summary,) = node.run("""
        const worker = new Worker(client, { agentId: "ts-1" });
        worker.handle("x", () => 1);
        const running = worker.run();
        setTimeout(() => worker.stop(), 300);
        print(await running);
    """)
    assert set(summary.values()) == {0}
    made = on_queue(store, lambda queue: queue.submit(type="x"))
    assert on_queue(store, lambda queue: queue.get(made.id)).status == "ready"


def test_result_has_an_error_for_each_way_it_can_be_missing(node: Node) -> None:
    found = node.run("""
        const name = (error) => [error.constructor.name, error.code];
        await client.submit({ type: "x", id: "waits" });
        await client.submit({ type: "x", id: "cancelled" });
        await client.cancel("cancelled");
        print(await client.result("waits", { timeoutSec: 0 }).catch(name));
        print(await client.result("cancelled").catch(name));
        print(await client.result("nothing").catch(name));
    """)
    assert found == [
        ["ResultTimeout", "result_timeout"],
        ["TaskCancelled", "task_cancelled"],
        ["NotFound", "not_found"],
    ]


def test_errors_have_the_codes_of_the_server(node: Node) -> None:
    invalid, unreachable, password = node.run("""
        const facts = (error) => [error.name, error.code, error.status, error.where, error.hint !== ""];
        print(await client.submit({ type: "" }).catch(facts));
        const nowhere = new Client({ url: "http://127.0.0.1:1", patienceMs: 0 });
        print(await nowhere.get("x").catch(facts));
        try { new Client("http://ada:secret@127.0.0.1"); } catch (error) { print([error.name, error.message]); }
    """)
    assert invalid[:3] == ["ShiftworkError", "invalid_input", 422]
    assert invalid[4]
    assert unreachable == ["ServerUnavailable", "store_unavailable", 0, None, True]
    assert password[0] == "TypeError"
    assert "secret" not in password[1]


def test_call_whose_answer_is_lost_takes_effect_once(node: Node, store: str) -> None:
    (ids,) = node.run("""
        let lost = 0;
        const lossy = async (...call) => {
          const answer = await fetch(...call);
          if (lost++ === 0) throw new TypeError("the connection broke");
          return answer;
        };
        const careful = new Client({ url: client.url, fetch: lossy });
        print((await careful.submit({ type: "x" })).id);
    """)
    page = on_queue(store, lambda queue: queue.tasks.list())
    assert [task.id for task in page.tasks] == [ids]


def test_generated_types_have_no_alternatives_of_other_documents(package: Path) -> None:
    types = (package / "src" / "generated" / "openapi.ts").read_text(encoding="utf-8")
    found = alternatives(types)
    assert len(found) > 100
    assert [line for line in found if line.count(" | ") > 1] == []
    assert re.findall(r"\b(?:Loki|Aegis|Factory|Redis|Coscientist)Task\b", types) == []


def test_wrong_calls_do_not_compile(package: Path, tmp_path: Path) -> None:
    program = """
        import { Client } from "shiftwork";
        const client = new Client("http://127.0.0.1:8080");
        const task = await client.get("t1");
        const status: string = task.status;
        await client.call("dags_get", { path: { dag_id: "d1" } });
        await client.submit({ type: status, priority: 10, payload: { any: ["thing"] } });
        // @ts-expect-error: a task has a type
        await client.submit({ priority: 10 });
        // @ts-expect-error: misspelt
        await client.submit({ type: "x", prioirty: 10 });
        // @ts-expect-error: the path is missing
        await client.call("dags_get", {});
        // @ts-expect-error: no such operation
        await client.call("dags_got", {});
    """
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "shiftwork").symlink_to(package)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "program.ts").write_text(program, encoding="utf-8")
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
    line = ["node", str(package / "node_modules" / "typescript" / "bin" / "tsc"), *options, "program.ts"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_package_is_complete_and_has_no_dependencies(package: Path, tmp_path: Path) -> None:
    archive = typescript.pack(package)
    shutil.unpack_archive(archive, tmp_path, "gztar")
    files = {str(file.relative_to(tmp_path / "package")) for file in tmp_path.rglob("*") if file.is_file()}
    assert files >= {"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts"}
    assert not any(name.startswith(("src/", "scripts/", "node_modules/")) for name in files)
    described = json.loads((tmp_path / "package" / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in described
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", each) for each in described["devDependencies"].values())
    assert {described["types"], described["exports"]["."]["types"]} == {"./dist/index.d.ts"}


def test_examples_of_the_readme_run(node: Node) -> None:
    readme = (typescript.PACKAGE / "README.md").read_text(encoding="utf-8")
    submit, status, work = (
        re.sub(r"<\{.*?\}>", "", code).replace("http://127.0.0.1:8080", node.url)
        for code in re.findall(r"```ts\n(.*?)```", readme, re.DOTALL)
    )
    for name, code in {"submit": submit, "status": status, "work": work}.items():
        (node.folder / f"{name}.mjs").write_text(code, encoding="utf-8")
    with subprocess.Popen(["node", "submit.mjs"], cwd=node.folder, stdout=subprocess.PIPE, text=True) as producer:
        node.run("while ((await client.call('tasks_list', {})).tasks.length === 0);")
        for name in ("work", "status"):
            subprocess.run(["node", f"{name}.mjs"], cwd=node.folder, check=True, stdout=subprocess.DEVNULL)
        assert producer.stdout is not None
        assert "Hello Ada" in producer.stdout.read()
        assert producer.wait(60) == 0
