"""The same verbs for programs without an event loop: each blocks until its answer is there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from shiftwork.client.client import PATIENCE_SEC, TIMEOUT_SEC, Client
from shiftwork.core.errors import StoreClosed
from shiftwork.queue.read import Event

P = ParamSpec("P")
T = TypeVar("T")
END_SEC = 10.0


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shiftwork-client", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Called from any thread but its own."""
        with self._lock:  # what is taken on here comes before the end of all
            if self._closing:
                work.close()
                raise StoreClosed("the client was closed", mend="Open it again.")
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(answer)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise StoreClosed("the client was closed meanwhile", mend="Open it again.") from None
        finally:
            answer.cancel()  # where the caller was interrupted
            with self._lock:
                self._waiting.discard(answer)

    def end(self) -> None:
        """Whoever still waits is told; from now on nobody can begin to."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop)
        self._thread.join(2 * END_SEC)
        with self._lock:
            left = list(self._waiting)
        for answer in left:  # of work that did not heed its end
            answer.cancel()
        if not self._thread.is_alive():
            self._loop.close()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.wait([asyncio.gather(*left, return_exceptions=True)], timeout=END_SEC)
    asyncio.get_running_loop().stop()


def _blocking(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    @functools.wraps(verb)
    def call(self: SyncClient, /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.wait(verb(self._client, *args, **named))

    return call


class SyncClient:
    """A `Client` whose verbs block. It may be used from several threads at once; not from inside an event loop."""

    def __init__(self, loop: _Loop, client: Client) -> None:
        self._loop = loop
        self._client = client

    @classmethod
    def open(
        cls,
        url: str,
        *,
        token: str | None = None,
        workspace: str | None = None,
        actor: str = "system",
        timeout_sec: float = TIMEOUT_SEC,
        patience_sec: float = PATIENCE_SEC,
    ) -> SyncClient:
        """As `Client.open` does."""
        loop = _Loop()
        opening = Client.open(
            url, token=token, workspace=workspace, actor=actor, timeout_sec=timeout_sec, patience_sec=patience_sec
        )
        try:
            return cls(loop, loop.wait(opening))
        except BaseException:
            loop.end()
            raise

    def __repr__(self) -> str:
        return f"Sync{self._client!r}"

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def workspace(self) -> str:
        return self._client.workspace

    def now(self) -> float:
        """The server's time: the same for every process of the fleet."""
        return self._client.now()

    def in_workspace(self, name: str) -> SyncClient:
        """The same server, another workspace."""
        return SyncClient(self._loop, self._client.in_workspace(name))

    def as_caller(self, actor: str, request_id: str | None = None) -> SyncClient:
        """The same server, spoken to by somebody else."""
        return SyncClient(self._loop, self._client.as_caller(actor, request_id))

    def close(self) -> None:
        """Close the connections; whoever still waits for an answer gets `StoreClosed`."""
        try:
            self._loop.wait(self._client.close())
        except StoreClosed:
            return
        self._loop.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def follow(self, after: int = 0, *, poll_sec: float = 0.05) -> Iterator[Event]:
        """Events as they come, each once, for ever."""
        source = self._client.follow(after, poll_sec=poll_sec)

        async def following() -> Event:
            return await anext(source)

        while True:
            yield self._loop.wait(following())

    def get_artifact(self, artifact_id: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes of an artifact as they come, or those from `start` up to `end`; what is damaged is an error."""
        source = self._client.get_artifact(artifact_id, start=start, end=end)

        async def following() -> bytes | None:
            return await anext(source, None)

        while (part := self._loop.wait(following())) is not None:
            yield part

    submit = _blocking(Client.submit)
    submit_many = _blocking(Client.submit_many)
    submit_dag = _blocking(Client.submit_dag)
    add_to_dag = _blocking(Client.add_to_dag)

    claim = _blocking(Client.claim)
    claim_answer = _blocking(Client.claim_answer)
    claim_for_runtime = _blocking(Client.claim_for_runtime)
    claims_made = _blocking(Client.claims_made)
    current_token = _blocking(Client.current_token)

    register_agent = _blocking(Client.register_agent)
    deregister_agent = _blocking(Client.deregister_agent)
    agent_heartbeat = _blocking(Client.agent_heartbeat)
    runtime_heartbeat = _blocking(Client.runtime_heartbeat)
    orphans = _blocking(Client.orphans)
    runtime_gone = _blocking(Client.runtime_gone)
    start = _blocking(Client.start)
    start_many = _blocking(Client.start_many)
    heartbeat = _blocking(Client.heartbeat)
    heartbeat_many = _blocking(Client.heartbeat_many)
    progress = _blocking(Client.progress)
    message = _blocking(Client.message)
    pin_session = _blocking(Client.pin_session)
    complete = _blocking(Client.complete)
    complete_many = _blocking(Client.complete_many)
    verdict = _blocking(Client.verdict)
    fail = _blocking(Client.fail)
    fail_many = _blocking(Client.fail_many)
    release = _blocking(Client.release)
    release_many = _blocking(Client.release_many)
    spawn = _blocking(Client.spawn)
    wait_for = _blocking(Client.wait_for)

    wait = _blocking(Client.wait)
    signal = _blocking(Client.signal)
    answer = _blocking(Client.answer)
    approvals = _blocking(Client.approvals)
    approve = _blocking(Client.approve)
    reject = _blocking(Client.reject)

    steps = _blocking(Client.steps)
    begin_step = _blocking(Client.begin_step)
    complete_step = _blocking(Client.complete_step)
    effects = _blocking(Client.effects)
    begin_effect = _blocking(Client.begin_effect)
    finish_effect = _blocking(Client.finish_effect)
    resolve_effect = _blocking(Client.resolve_effect)

    put_artifact = _blocking(Client.put_artifact)
    artifact = _blocking(Client.artifact)
    artifacts = _blocking(Client.artifacts)
    inputs = _blocking(Client.inputs)

    cancel = _blocking(Client.cancel)
    cancel_many = _blocking(Client.cancel_many)
    cancel_dag = _blocking(Client.cancel_dag)
    rerun = _blocking(Client.rerun)
    rerun_issue = _blocking(Client.rerun_issue)
    update = _blocking(Client.update)
    update_dag = _blocking(Client.update_dag)
    review = _blocking(Client.review)
    redrive = _blocking(Client.redrive)
    acknowledge_alert = _blocking(Client.acknowledge_alert)
    pause = _blocking(Client.pause)
    resume = _blocking(Client.resume)
    purge = _blocking(Client.purge)
    rebalance = _blocking(Client.rebalance)
    set_agent_status = _blocking(Client.set_agent_status)
    set_agent_budget = _blocking(Client.set_agent_budget)
    settings = _blocking(Client.settings)
    set_setting = _blocking(Client.set_setting)
    change_settings = _blocking(Client.change_settings)
    unset_setting = _blocking(Client.unset_setting)
    profile = _blocking(Client.profile)
    use_profile = _blocking(Client.use_profile)
    create_token = _blocking(Client.create_token)
    tokens = _blocking(Client.tokens)
    revoke_token = _blocking(Client.revoke_token)

    breakers = _blocking(Client.breakers)
    reset_breaker = _blocking(Client.reset_breaker)
    trip_breaker = _blocking(Client.trip_breaker)
    configure_breakers = _blocking(Client.configure_breakers)
    cooldowns = _blocking(Client.cooldowns)
    cool_down = _blocking(Client.cool_down)
    lift_cooldown = _blocking(Client.lift_cooldown)
    limits = _blocking(Client.limits)
    set_limit = _blocking(Client.set_limit)
    remove_limit = _blocking(Client.remove_limit)

    get = _blocking(Client.get)
    get_many = _blocking(Client.get_many)
    tasks = _blocking(Client.tasks)
    result = _blocking(Client.result)
    history = _blocking(Client.history)
    attempts = _blocking(Client.attempts)
    transitions = _blocking(Client.transitions)
    explain = _blocking(Client.explain)
    tag_counts = _blocking(Client.tag_counts)
    dag = _blocking(Client.dag)
    dags = _blocking(Client.dags)
    dead_letters = _blocking(Client.dead_letters)
    failure_groups = _blocking(Client.failure_groups)
    reviews = _blocking(Client.reviews)
    agents = _blocking(Client.agents)
    agent = _blocking(Client.agent)
    runtimes = _blocking(Client.runtimes)
    status = _blocking(Client.status)
    backpressure = _blocking(Client.backpressure)
    bridges = _blocking(Client.bridges)
    alerts = _blocking(Client.alerts)
    failures = _blocking(Client.failures)
    duties = _blocking(Client.duties)
    events = _blocking(Client.events)
    newest_event = _blocking(Client.newest_event)

    set_budget = _blocking(Client.set_budget)
    budgets = _blocking(Client.budgets)
    costs = _blocking(Client.costs)

    save_trigger = _blocking(Client.save_trigger)
    triggers = _blocking(Client.triggers)
    trigger = _blocking(Client.trigger)
    firings = _blocking(Client.firings)
    pause_trigger = _blocking(Client.pause_trigger)
    resume_trigger = _blocking(Client.resume_trigger)
    remove_trigger = _blocking(Client.remove_trigger)
    fire_trigger = _blocking(Client.fire_trigger)
    preview_trigger = _blocking(Client.preview_trigger)

    add_sink = _blocking(Client.add_sink)
    sinks = _blocking(Client.sinks)
    sink = _blocking(Client.sink)
    update_sink = _blocking(Client.update_sink)
    pause_sink = _blocking(Client.pause_sink)
    resume_sink = _blocking(Client.resume_sink)
    remove_sink = _blocking(Client.remove_sink)
    test_sink = _blocking(Client.test_sink)
    deliveries = _blocking(Client.deliveries)
    delivery = _blocking(Client.delivery)
    redeliver = _blocking(Client.redeliver)
    redeliver_dead = _blocking(Client.redeliver_dead)

    take_snapshot = _blocking(Client.take_snapshot)
    snapshots = _blocking(Client.snapshots)
    set_quota = _blocking(Client.set_quota)
    quota = _blocking(Client.quota)
    quotas = _blocking(Client.quotas)
    metrics = _blocking(Client.metrics)
    metric_snapshots = _blocking(Client.metric_snapshots)
