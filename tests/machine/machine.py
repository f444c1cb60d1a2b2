"""The rules: each makes one call on the queue, predicts its effect on the model, and compares both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shiftwork import Queue
from shiftwork.dead_letters.model import Decision
from shiftwork.model import ids
from shiftwork.model.errors import (
    CircularDependency,
    LeaseLost,
    NotFound,
    ShiftworkError,
    UnknownDependency,
    WrongState,
)
from shiftwork.model.task import Submitted
from shiftwork.testing import MovedClock, pass_time
from tests.machine import tables
from tests.machine.model import (
    CLAIMED_STATES,
    FINAL,
    LENIENT,
    NEW_ROWS,
    PLAIN,
    SETTLED,
    WAITING,
    Agent,
    Lineage,
    Model,
    Rules,
)
from tests.machine.plan import AGENTS, Plan, Ref, Spec, refs, resolve, specs, uuid_of

T = TypeVar("T")
Opener = Callable[[MovedClock], Awaitable[Queue]]
REASONS = ("crash", "rate_limit", "invalid_input", "auth_failure", "odd")

index = st.integers(0, 50)
seldom = st.sampled_from([False, False, False, True])
"""Not too often: what is gone, or may not be claimed, cannot be played with."""

spending = st.sampled_from([None, {"cost_usd": 0.25, "tokens_in": 3}])


ESTIMATE = 0.25
"""What a task that names no price is granted, in dollars, as far as there is this much."""


class Token(NamedTuple):
    text: str
    label: str
    accepted: bool = False


class Machine(RuleBasedStateMachine):
    """Random verbs, time steps and stale fences on a fresh queue, compared with the model."""

    def __init__(self, opener: Opener) -> None:
        super().__init__()
        self.clock = MovedClock()
        self.runner = asyncio.Runner()
        self.queue = self.wait(opener(self.clock))
        self.model = Model(PLAIN)
        self.tokens: list[Token] = []
        self.seen: tables.Tables | None = None

    def wait(self, call: Awaitable[T]) -> T:
        async def run() -> T:
            return await call

        return self.runner.run(run())

    def teardown(self) -> None:
        self.wait(self.queue.close())
        self.runner.close()

    @initialize(rules=st.sampled_from([PLAIN, NEW_ROWS, LENIENT]), batch=st.lists(specs, min_size=3, max_size=6))
    def set_up(self, rules: Rules, batch: list[Spec]) -> None:
        self.model = Model(rules)
        self.wait(self._set_up(rules))
        self.everything_holds()
        for spec in batch:
            self.submit_lone(spec)
            self.everything_holds()

    async def _set_up(self, rules: Rules) -> None:
        for key, value in rules.settings().items():
            await self.queue.settings.set(key, value)
        for agent in AGENTS:
            await self.queue.agents.register(
                id=agent.id,
                capabilities=sorted(agent.capabilities),
                types=None if agent.types is None else sorted(agent.types),
                max_concurrent_tasks=agent.slots,
                budget_remaining_usd=agent.budget,
            )

    def refused(self, error: type[ShiftworkError], call: Coroutine[Any, Any, Any]) -> None:
        """The call must be refused with this error and change nothing."""
        before = self.wait(tables.look(self.queue))
        try:
            answer = self.wait(call)
        except error:
            assert self.wait(tables.look(self.queue)).state() == before.state(), "a refused call changed something"
        else:
            raise AssertionError(f"expected {error.__name__}, got {answer!r}")

    @property
    def now(self) -> float:
        return self.clock()

    def pick(self, states: set[str], number: int) -> Lineage:
        found = self.model.in_state(states)
        return found[number % len(found)]

    def newest_id(self, task: Lineage) -> str:
        assert self.seen is not None
        return ids.show_task(self.seen.newest(uuid_of(task.label))["id"])

    def root_of(self, task_id: str) -> str:
        row = self.seen.tasks.get(uuid_of(task_id)) if self.seen else None
        return ids.show_task(row["root_id"]) if row else task_id

    def has(self, states: set[str]) -> bool:
        return bool(self.model.in_state(states))

    @rule(batch=st.lists(specs, min_size=1, max_size=3), how=st.sampled_from(["many", "dag", "join"]), at=index)
    def submit(self, batch: list[Spec], how: str, at: int) -> None:
        plan = Plan(self.model, batch, self.root_of)
        call: Coroutine[Any, Any, Sequence[Submitted]] = self.queue.submit_many(plan.written)
        dags = self.dags()
        if how == "dag":
            call.close()
            call = self.queue.submit_dag({"tasks": plan.written})
        elif how == "join" and dags:
            call.close()
            call = self.queue.dags.add_tasks(dags[at % len(dags)], plan.written)
        if error := plan.refusal():
            self.refused(error, call)
        else:
            plan.done(self.wait(call))

    @rule(spec=specs)
    def submit_lone(self, spec: Spec) -> None:
        plan = Plan(self.model, [spec], self.root_of)
        call = self.queue.submit(plan.written[0])
        if error := plan.refusal():
            self.refused(error, call)
        else:
            plan.done([self.wait(call)])

    def dags(self) -> list[str]:
        rows = self.seen.tasks.values() if self.seen else []
        return sorted({ids.show_dag(row["dag_id"]) for row in rows})

    def fits(self, task: Lineage, agent: Agent, money: float | None) -> bool:
        return (
            task.status == "ready"
            and (agent.types is None or task.type in agent.types)
            and (task.capability is None or task.capability in agent.capabilities)
            and task.target in {None, agent.id}
            and not self.model.paused & {"*", task.type}
            and (money is None or (money > 0 and task.cost <= money))
        )

    @rule(agent=st.sampled_from(AGENTS), count=st.integers(1, 4), start=st.booleans())
    def claim(self, agent: Agent, count: int, start: bool) -> None:  # noqa: FBT001  # drawn
        assert self.seen is not None
        row = self.seen.agents[agent.id]
        money = None if row["budget"] is None else (row["budget"] - row["spent"] - row["granted"]) / 1e6
        held = sum(1 for task in self.model.in_state(CLAIMED_STATES) if task.agent == agent.id)
        runtime = None if agent.runtime == agent.id else agent.runtime
        got = self.wait(self.queue.claim(agent.id, count, start=start, runtime_id=runtime))
        for assignment in got:
            task = self.model.all[assignment.task().root_task_id]
            assert self.fits(task, agent, money), f"{agent} may not take {task}"
            money = None if money is None else round(money - (task.cost or min(ESTIMATE, money)), 6)
            self.model.claim(task, agent, assignment.token, self.now, start=start)
            self.tokens.append(Token(assignment.token, task.label))
        assert len(got) <= min(count, agent.slots - held)
        if len(got) < min(count, agent.slots - held):
            left = [task for task in self.model.all.values() if self.fits(task, agent, money)]
            assert not left, f"{agent.id} was not given {left[0]}"

    @rule(agent=st.sampled_from(AGENTS), budget=st.sampled_from([None, 0.0, 0.5, 3.0]), at=index)
    def small_things(self, agent: Agent, budget: float | None, at: int) -> None:
        """Verbs that change little share one rule, so that the others get enough steps."""
        if at % 4 == 0:
            self.wait(self.queue.agents.set_budget(agent.id, budget))
        elif at % 4 == 1:
            self.rebalance()
        elif at % 4 == 2:
            self.runtime_heartbeat(agent.runtime)
        elif self.model.all:
            self.change_priority(at, at)

    @precondition(lambda self: not self.model.paused)
    @rule(type_=st.sampled_from([None, "code", "docs"]), really=seldom)
    def pause(self, type_: str | None, really: bool) -> None:  # noqa: FBT001  # drawn
        assert self.wait(self.queue.control.resume(type_)) is False
        if really:
            self.wait(self.queue.control.pause(type_))
            self.model.paused.add(type_ or "*")

    @precondition(lambda self: self.model.paused)
    @rule()
    def resume(self) -> None:
        for scope in sorted(self.model.paused):
            assert self.wait(self.queue.control.resume(None if scope == "*" else scope)) is True
        self.model.paused.clear()

    def rebalance(self) -> None:
        for outcome in self.wait(self.queue.agents.rebalance()):
            task = next(t for t in self.model.in_state({"claimed"}) if self.newest_id(t) == outcome.task_id)
            self.model.release(task)

    @precondition(lambda self: self.has(CLAIMED_STATES))
    @rule(at=index)
    def start(self, at: int) -> None:
        task = self.pick(CLAIMED_STATES, at)
        outcome = self.wait(self.queue.start(str(task.token)))
        assert outcome.repeated == (task.status == "running")
        if task.status == "claimed":
            task.status, task.started, task.heard = "running", self.now, self.now

    @precondition(lambda self: self.has(CLAIMED_STATES))
    @rule(at=index, usage=spending)
    def heartbeat(self, at: int, usage: Any) -> None:
        task = self.pick(CLAIMED_STATES, at)
        answer = self.wait(self.queue.heartbeat(str(task.token), {"step": at}, usage))
        assert answer.action == "continue"
        if task.status == "running":
            task.heard = self.now

    def runtime_heartbeat(self, runtime: str) -> None:
        holding = [str(task.token) for task in self.model.in_state(CLAIMED_STATES) if task.runtime == runtime]
        stale = [token.text for token in self.tokens if not self.is_live(token)]
        answer = self.wait(self.queue.runtimes.heartbeat(runtime, holding + stale))
        assert set(answer.lost) | set(answer.cancel) == set(stale)
        self.model.beats[runtime] = self.now

    def take_work(self) -> None:
        """Let an agent claim and start a task, if none is running."""
        for agent in AGENTS:
            if not self.has({"running"}):
                self.claim(agent, 1, start=True)
                self.everything_holds()

    @rule(at=index, usage=spending)
    def work_well(self, at: int, usage: Any) -> None:
        self.take_work()
        if self.has({"running"}):
            self.finish(self.pick({"running"}, at), at, usage)

    @rule(at=index, reason=st.sampled_from(REASONS), usage=spending)
    def work_badly(self, at: int, reason: str, usage: Any) -> None:
        self.take_work()
        if self.has({"running"}):
            self.fail(at, reason, retry=True, usage=usage)

    @rule(at=index, after=st.lists(refs, max_size=2))
    def work_and_wait(self, at: int, after: list[Ref]) -> None:
        self.take_work()
        if self.has({"running"}):
            self.wait_for(at, after)

    @rule(at=index, batch=st.lists(specs, min_size=1, max_size=2))
    def work_and_spawn(self, at: int, batch: list[Spec]) -> None:
        self.take_work()
        if self.has({"running"}):
            self.spawn(at, batch, park=True)

    @precondition(lambda self: self.has(CLAIMED_STATES))
    @rule(at=index, usage=spending)
    def complete(self, at: int, usage: Any) -> None:
        self.finish(self.pick(CLAIMED_STATES, at), at, usage)

    def finish(self, task: Lineage, at: int, usage: Any) -> None:
        token = str(task.token)
        if task.status == "claimed":
            self.refused(WrongState, self.queue.complete(token, {"at": at}, usage=usage))
            return
        outcome = self.wait(self.queue.complete(token, {"at": at}, usage=usage))
        assert (outcome.status, outcome.repeated) == ("completed", False)
        self.model.complete(task)
        self.tokens = [t._replace(accepted=t.accepted or t.text == token) for t in self.tokens]

    @precondition(lambda self: self.has(CLAIMED_STATES))
    @rule(at=index, reason=st.sampled_from(REASONS), retry=st.sampled_from([True, True, False]), usage=spending)
    def fail(self, at: int, reason: str, retry: bool, usage: Any) -> None:  # noqa: FBT001  # drawn
        task = self.pick(CLAIMED_STATES, at)
        self.wait(self.queue.fail(str(task.token), reason, "it broke", usage=usage, retry=retry))
        self.model.fail(task, reason, self.now, retry=retry)

    @precondition(lambda self: self.has(CLAIMED_STATES))
    @rule(at=index)
    def release(self, at: int) -> None:
        task = self.pick(CLAIMED_STATES, at)
        assert self.wait(self.queue.release(str(task.token))).status == "ready"
        self.model.release(task)

    @precondition(lambda self: self.has(CLAIMED_STATES))
    @rule(at=index, batch=st.lists(specs, min_size=1, max_size=2), park=st.booleans())
    def spawn(self, at: int, batch: list[Spec], park: bool) -> None:  # noqa: FBT001  # drawn
        task = self.pick(CLAIMED_STATES, at)
        plan = Plan(self.model, batch, self.root_of)
        call = self.queue.spawn(str(task.token), plan.written, wait=park)
        if park and task.status == "claimed":
            self.refused(WrongState, call)
        elif error := plan.refusal(task.label):
            self.refused(error, call)
        else:
            made = self.wait(call)
            plan.done(made, check_status=not park)
            labels = [self.root_of(answer.id) for answer in made]
            if park and not all(self.model.status_of(label) == "completed" for label in labels):
                self.model.wait(task, labels)

    @precondition(lambda self: self.has({"running"}))
    @rule(at=index, after=st.lists(refs, max_size=2))
    def wait_for(self, at: int, after: list[Ref]) -> None:
        task = self.pick({"running"}, at)
        found = [resolve(self.model, ref) for ref in after]
        labels = [label for _, label in found]
        call = self.queue.waits.wait_for_tasks(str(task.token), [text for text, _ in found])
        if any(label not in self.model.all and label not in self.model.archived for label in labels):
            self.refused(NotFound, call)
        elif self.model.leads_to(labels, task.label):
            self.refused(CircularDependency, call)
        else:
            status = self.wait(call)
            if all(self.model.status_of(label) == "completed" for label in labels):
                assert status == "running"  # nothing is left to wait for
            else:
                self.model.wait(task, labels)

    def is_live(self, token: Token) -> bool:
        task = self.model.all.get(token.label)
        return task is not None and task.token == token.text

    def stale(self, number: int) -> Token | None:
        found = [token for token in self.tokens if not self.is_live(token)]
        return found[number % len(found)] if found else None

    @precondition(lambda self: self.stale(0) is not None)
    @rule(at=index, verb=st.sampled_from(["start", "complete", "fail", "release", "spawn", "wait_for", "progress"]))
    def write_under_a_stale_fence(self, at: int, verb: str) -> None:
        token = self.stale(at)
        assert token is not None
        before = self.wait(tables.look(self.queue))
        error: ShiftworkError | None = None
        outcome: Any = None
        try:
            outcome = self.wait(self._write(verb, token.text))
        except ShiftworkError as refused:
            error = refused
        assert self.wait(tables.look(self.queue)).state() == before.state(), "a stale write changed something"
        if outcome is not None:
            assert outcome.repeated
            assert verb == "fail" or (verb == "complete" and token.accepted)
        elif token.label in self.model.all and not (verb == "complete" and token.accepted):
            assert isinstance(error, LeaseLost), error
        else:
            assert isinstance(error, NotFound | LeaseLost), error

    def _write(self, verb: str, token: str) -> Coroutine[Any, Any, Any]:
        queue = self.queue
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "start": lambda: queue.start(token),
            "complete": lambda: queue.complete(token, "late"),
            "fail": lambda: queue.fail(token, "crash"),
            "release": lambda: queue.release(token),
            "spawn": lambda: queue.spawn(token, [{"type": "code"}]),
            "wait_for": lambda: queue.waits.wait_for_tasks(token, []),
            "progress": lambda: queue.claims.progress(token, 1),
        }
        return calls[verb]()

    @precondition(lambda self: self.stale(0) is not None)
    @rule(at=index, usage=spending)
    def beat_under_a_stale_fence(self, at: int, usage: Any) -> None:
        """Changes only the booked cost."""
        token = self.stale(at)
        assert token is not None
        before = self.wait(tables.look(self.queue))
        answer = self.wait(self.queue.heartbeat(token.text, {"late": True}, usage))
        assert answer.action in {"lost", "cancel"}
        if usage is None:
            assert self.wait(tables.look(self.queue)).state() == before.state()

    @precondition(lambda self: bool(self.model.all))
    @rule(at=index, really=seldom)
    def cancel(self, at: int, really: bool) -> None:  # noqa: FBT001  # drawn
        settled = at % 2 and self.has(SETTLED)
        task = self.pick(SETTLED if settled else FINAL | SETTLED | CLAIMED_STATES | WAITING, at)
        call = self.queue.cancel(self.newest_id(task))
        if task.status in FINAL:
            self.refused(WrongState, call)
        elif really:
            self.wait(call)
            self.model.cancel([task])
        else:
            call.close()

    @precondition(lambda self: any(not self.seen.is_newest(row) for row in self.seen.tasks.values()))
    @rule(at=index, verb=st.sampled_from(["cancel", "review", "update"]))
    def touch_a_superseded_row(self, at: int, verb: str) -> None:
        assert self.seen is not None
        old = [id_ for id_, row in self.seen.tasks.items() if not self.seen.is_newest(row)]
        id_ = ids.show_task(old[at % len(old)])
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "cancel": lambda: self.queue.cancel(id_),
            "review": lambda: self.queue.dead_letters.review(id_, "retry"),
            "update": lambda: self.queue.tasks.update(id_, {"priority": 1}),
        }
        self.refused(WrongState, calls[verb]())

    @precondition(lambda self: bool(self.dags()))
    @rule(at=index, really=seldom)
    def cancel_dag(self, at: int, really: bool) -> None:  # noqa: FBT001  # drawn
        assert self.seen is not None
        dags = self.dags()
        if not really:
            return
        dag = uuid_of(dags[at % len(dags)])
        inside = {ids.show_task(row["root_id"]) for row in self.seen.tasks.values() if row["dag_id"] == dag}
        self.wait(self.queue.dags.cancel(dag))
        self.model.cancel([t for t in self.model.all.values() if t.label in inside and t.status not in FINAL])

    def change_priority(self, at: int, priority: int) -> None:
        task = self.pick(FINAL | SETTLED | CLAIMED_STATES | WAITING, at)
        call = self.queue.tasks.update(self.newest_id(task), {"priority": priority})
        if task.status in WAITING:
            self.wait(call)
        else:
            self.refused(WrongState, call)

    @precondition(lambda self: self.has(WAITING))
    @rule(at=index, after=st.lists(refs, max_size=3))
    def change_dependencies(self, at: int, after: list[Ref]) -> None:
        task = self.pick(WAITING, at)
        found = [resolve(self.model, ref) for ref in after]
        labels = list(dict.fromkeys(label for _, label in found))
        call = self.queue.tasks.update(self.newest_id(task), {"dependencies": [text for text, _ in found]})
        if any(label in self.model.gone for label in labels):
            self.refused(UnknownDependency, call)
            return
        if self.model.leads_to(labels, task.label):
            self.refused(CircularDependency, call)
            return
        self.wait(call)
        task.dependencies = {label: self.model.status_of(label) == "completed" for label in labels}
        if task.open:
            task.status = "pending"
        elif task.status == "pending":
            task.status = "ready"
        self.model.meet_fate([task.label])

    @precondition(lambda self: bool(self.model.all))
    @rule(
        at=index,
        decision=st.sampled_from(
            ["retry", "retry_later", "modify_and_retry", "cancel", "abandon", "delete", "escalate"]
        ),
        chain=st.booleans(),
        settled=st.sampled_from([True, True, True, False]),
    )
    def review(self, at: int, decision: Decision, chain: bool, settled: bool) -> None:  # noqa: FBT001  # drawn
        states = SETTLED if settled and self.has(SETTLED) else FINAL | SETTLED | CLAIMED_STATES | WAITING
        task = self.pick(states, at)
        later = self.now + 30 if decision == "retry_later" else None
        change = {"priority": 7} if decision == "modify_and_retry" else None
        call = self.queue.dead_letters.review(self.newest_id(task), decision, at=later, change=change, chain=chain)
        if task.status not in SETTLED:
            self.refused(WrongState, call)
            return
        self.wait(call)
        if decision == "cancel":
            self.model.cancel([task])
        elif decision in {"retry", "retry_later", "modify_and_retry"}:
            self.model.retry(task, at=later)
            if chain and task.status != "cancelled":
                self.model.revive(task.label)

    @precondition(lambda self: bool(self.model.all))
    @rule(at=index)
    def rerun(self, at: int) -> None:
        assert self.seen is not None
        task = self.pick(FINAL | SETTLED | CLAIMED_STATES | WAITING, at)
        is_retry = self.seen.newest(uuid_of(task.label))["retry_of"] is not None
        call = self.queue.tasks.rerun(task.label)
        if task.status in FINAL | SETTLED or (task.status in WAITING and is_retry):
            self.wait(call)
            self.model.rerun(task)
        else:
            self.refused(WrongState, call)

    @rule(
        status=st.sampled_from(["pending", "ready", "running", "completed", "failed", "dead_lettered"]),
        type_=st.sampled_from([None, "code", "docs"]),
        really=seldom,
    )
    def purge(self, status: str, type_: str | None, really: bool) -> None:  # noqa: FBT001  # drawn
        deletes = self.model.rules.purge == "delete"
        spared = CLAIMED_STATES if deletes else FINAL
        matched = [t for t in self.model.in_state({status} - spared) if type_ in {None, t.type}]
        if really:
            assert self.wait(self.queue.control.purge(status=[status], type=type_)) == len(matched)
            self.model.purge(matched)

    @rule(
        seconds=st.sampled_from([1.0, 6.0, 11.0, 31.0, 61.0, 95.0, 700.0, 4000.0]),
        maintenance=st.sampled_from([True, True, False]),
    )
    def pass_time(self, seconds: float, maintenance: bool) -> None:  # noqa: FBT001  # drawn
        if not maintenance:
            self.clock.advance(seconds)
            return
        self.wait(pass_time(self.queue, self.clock, seconds))
        self.model.pass_time(self.now)
        self.note_archived()

    def note_archived(self) -> None:
        """Check archived tasks: the queue chooses them, but they must have ended as in the model."""
        archive = self.wait(tables.look(self.queue)).archive
        for label, task in list(self.model.all.items()):
            if (status := archive.get(uuid_of(label))) is not None:
                assert status == task.status
                assert status in FINAL
                self.model.archived[label] = status
                self.model.forget(label)

    @rule(runtime=st.sampled_from(["laptop", "cid"]), known=st.booleans())
    def lose_a_runtime(self, runtime: str, known: bool) -> None:  # noqa: FBT001  # drawn
        held = [task for task in self.model.in_state(CLAIMED_STATES) if task.runtime == runtime]
        verb = self.queue.runtimes.report_gone if known else self.queue.runtimes.recover
        outcomes = self.wait(verb(runtime))
        assert {outcome.task_id for outcome in outcomes} == {self.newest_id(task) for task in held}
        for task in held:
            self.model.depart(task, self.now) if known else self.model.orphan(task, self.now)

    @invariant()
    def everything_holds(self) -> None:
        now = self.wait(tables.look(self.queue))
        tables.check(now, self.seen)
        self.wait(tables.check_explanations(self.queue, now, self.seen))
        self.seen = now
        self._as_expected(now)

    def _as_expected(self, now: tables.Tables) -> None:
        awaited = {n["task_id"]: f"?{n['name']}" for n in now.names if not n["known"] and ids.parse(n["name"]) is None}
        edges: dict[str, dict[str, bool]] = {label: {} for label in self.model.all}
        for edge in now.edges:
            dependency = awaited.get(edge["dependency"]) or ids.show_task(edge["dependency"])
            edges[ids.show_task(edge["dependent"])][dependency] = bool(edge["satisfied"])
        roots = {ids.show_task(row["root_id"]) for row in now.tasks.values()}
        assert roots == self.model.all.keys()
        for label, task in self.model.all.items():
            row = now.newest(uuid_of(label))
            assert row["status"] == task.status, f"{row['status']} in the queue, expected {task}"
            assert row["attempts"] == task.attempts, task
            assert row["agent_id"] == task.agent, task
            assert edges[label] == task.dependencies, task
            if task.token is not None:
                assert task.token == ids.token(ids.show_task(row["id"]), row["fence"])
        keys = {key["key"]: self.root_of(ids.show_task(key["task_id"])) for key in now.keys}
        assert keys == self.model.keys
