"""LangGraph: interrupts, branches and large states, over failed attempts."""

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import interrupt

from shiftwork import Queue
from shiftwork.integrations.langgraph import ShiftworkSaver, run
from shiftwork.testing import run_until_idle
from shiftwork.worker import Context, Fail, Worker


class Notes(TypedDict):
    """The state that the nodes share."""

    notes: Annotated[list[str], operator.add]


Node = Callable[[Notes], Notes]


def chain(*nodes: Node) -> CompiledStateGraph[Notes]:
    builder = StateGraph(Notes)
    for place, node in enumerate(nodes):
        builder.add_node(f"n{place}", RunnableLambda(node))
        if place:
            builder.add_edge(f"n{place - 1}", f"n{place}")
    builder.set_entry_point("n0")
    return builder.compile()


def worker_on(graph: CompiledStateGraph[Notes], failures: int = 0) -> Worker:
    """Make a worker that fails this many times after the graph has ended."""
    worker = Worker(concurrency=1)
    left = [None] * failures

    @worker.handler("t")
    async def handle(ctx: Context) -> Any:
        await ctx.step("graph of mine", str)  # which is no part of the log
        state = await run(ctx, graph, {"notes": []})
        if left:
            left.pop()
            raise Fail("network", "the answer did not arrive")
        return state["notes"]

    return worker


async def submit(queue: Queue) -> str:
    return (await queue.submit(type="t", retry={"strategy": "immediate"})).id


async def test_two_interrupts_of_one_node_are_two_questions(store_url: str) -> None:
    ran: list[str] = []

    def ask(_: Notes) -> Notes:
        first = interrupt("Which city?")
        second = interrupt({"question": "Which day?", "schema": {"type": "integer"}})
        ran.append("asked")
        return {"notes": [first, str(second)]}

    def write(_: Notes) -> Notes:
        ran.append("written")
        return {"notes": ["written"]}

    worker = worker_on(chain(ask, write), failures=2)
    async with Queue.open(store_url) as queue:
        task_id = await submit(queue)
        for question, answer in (("Which city?", "Oslo"), ("Which day?", 7)):
            await run_until_idle(worker, queue)
            (asked,) = await queue.approvals.list()
            assert asked.question == question
            await queue.approvals.answer(task_id, answer)
        await run_until_idle(worker, queue)
        task = await queue.get(task_id)
    assert task.result is not None
    assert (task.status, task.result.data) == ("completed", ["Oslo", "7", "written"])
    assert ran == ["asked", "written"]


async def test_failed_node_runs_again_and_others_do_not(sqlite_url: str) -> None:
    ran: list[str] = []

    def first(_: Notes) -> Notes:
        ran.append("first")
        return {"notes": ["x" * 200_000]}  # more than a step keeps in the database

    def second(_: Notes) -> Notes:
        ran.append("second")
        if ran.count("second") == 1:
            raise ConnectionError("down")
        return {"notes": ["done"]}

    async with Queue.open(sqlite_url) as queue:
        task_id = await submit(queue)
        await run_until_idle(worker_on(chain(first, second)), queue)
        task = await queue.get(task_id)
    assert task.result is not None
    assert task.result.data[1:] == ["done"]
    assert ran == ["first", "second", "second"]


async def test_actions_of_langchain_middleware_are_approvals(sqlite_url: str) -> None:
    def act(_: Notes) -> Notes:
        actions = [{"name": "publish", "args": {"text": "rain"}}, {"name": "erase", "args": {}}]
        answer = interrupt({"action_requests": actions, "review_configs": []})
        return {"notes": [str(each) for each in answer["decisions"]]}

    worker = worker_on(chain(act))
    async with Queue.open(sqlite_url) as queue:
        task_id = await submit(queue)
        for answer in ({"approved": True}, {"approved": False, "note": "never"}):
            await run_until_idle(worker, queue)
            await queue.approvals.answer(task_id, answer)
        await run_until_idle(worker, queue)
        task = await queue.get(task_id)
    assert task.result is not None
    assert task.result.data == ["{'type': 'approve'}", "{'type': 'reject', 'message': 'never'}"]


async def test_branches_that_interrupt_are_asked_one_after_the_other(sqlite_url: str) -> None:
    builder = StateGraph(Notes)
    for name in ("left", "right"):
        builder.add_node(name, lambda _, name=name: {"notes": [f"{name} {interrupt(f'{name}?')}"]})
        builder.set_entry_point(name)
    worker = worker_on(builder.compile())
    async with Queue.open(sqlite_url) as queue:
        task_id = await submit(queue)
        for _ in range(2):
            await run_until_idle(worker, queue)
            (asked,) = await queue.approvals.list()
            await queue.approvals.answer(task_id, f"to {asked.question}")
        await run_until_idle(worker, queue)
        task = await queue.get(task_id)
    assert task.result is not None
    assert sorted(task.result.data) == ["left to left?", "right to right?"]


async def test_checkpointer_refuses_unsupported_calls(sqlite_url: str) -> None:
    worker = Worker(concurrency=1)
    refused: list[str] = []

    @worker.handler("t")
    async def handle(ctx: Context) -> None:
        saver = await ShiftworkSaver.open(ctx)
        graph = chain(lambda _: {"notes": ["x"]}).copy({"checkpointer": saver})
        with pytest.raises(NotImplementedError, match="ainvoke") as caught:
            graph.invoke({"notes": []}, {"configurable": {"thread_id": "1"}})
        refused.append(str(caught.value))

    async with Queue.open(sqlite_url) as queue:
        await submit(queue)
        await run_until_idle(worker, queue)
    assert len(refused) == 1
