"""A person at the command line, and tasks in every state for them to look at."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from click.testing import CliRunner

from shiftwork import Queue
from shiftwork.cli import main
from tests.conformance import steps

T = TypeVar("T")


class Run(NamedTuple):
    code: int
    out: str
    err: str


class Terminal:
    """Runs commands on one store, inside this process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._mules = 0

    def run(self, *line: str, stdin: str | bytes | None = None, **environment: str) -> Run:
        known = {"SHIFTWORK_STORE": self.url, "USER": "ada", **environment}
        result = CliRunner(env=known).invoke(main, list(line), input=stdin, prog_name="shiftwork")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Run(result.exit_code, result.stdout, result.stderr)

    def text(self, *line: str, stdin: str | None = None) -> str:
        done = self.run(*line, stdin=stdin)
        assert done.code == 0, done.err
        return done.out

    def json(self, *line: str, stdin: str | None = None) -> Any:
        return json.loads(self.text(*line, "--json", stdin=stdin))

    def on_queue(self, action: Callable[[Queue], Awaitable[T]]) -> T:
        """Do what no command does: claim, complete, fail."""

        async def run() -> T:
            async with await Queue.open(self.url) as queue:
                return await action(queue)

        return asyncio.run(run())

    def _mule(self) -> str:
        """An agent of its own for each task, so that no other task is in its way."""
        self._mules += 1
        return "mule" if self._mules == 1 else f"mule-{self._mules}"

    # -- tasks in a state ------------------------------------------------------------------------------------------

    def ready(self) -> str:
        async def make(queue: Queue) -> str:
            return (await queue.submit(type="code", title="Write it", payload={"file": "a.py"}, tags=["web"])).id

        return self.on_queue(make)

    def dead(self) -> str:
        mule = self._mule()

        async def make(queue: Queue) -> str:
            await queue.register_agent(id=mule)
            made = await queue.submit(type="doomed", target_agent_id=mule)
            (claim,) = await queue.claim(mule, start=True, types=["doomed"])
            await queue.fail(claim.token, "crash", "boom", retry=False)
            return made.id

        return self.on_queue(make)

    def done(self) -> str:
        mule = self._mule()

        async def make(queue: Queue) -> str:
            await queue.register_agent(id=mule)
            made = await queue.submit(type="easy", deadline=2_000_000_000, target_agent_id=mule)
            (claim,) = await queue.claim(mule, start=True, types=["easy"])
            await queue.complete(claim.token, {"lines": 7}, text="all done", usage={"cost_usd": 0.25, "tokens_in": 9})
            return made.id

        return self.on_queue(make)

    def claimed(self) -> str:
        return self._held(start=False)

    def running(self) -> str:
        return self._held(start=True)

    def _held(self, *, start: bool) -> str:
        mule = self._mule()

        async def make(queue: Queue) -> str:
            await queue.submit(type="held", target_agent_id=mule)
            return (await queue.claim(mule, start=start, types=["held"]))[0].token

        return self.on_queue(make)

    def alert(self) -> str:
        self.dead()

        async def look(queue: Queue) -> str:
            return str((await queue.alerts(open_only=True))[-1].seq)

        return self.on_queue(look)

    def waiting(self) -> str:
        async def make(queue: Queue) -> str:
            return (await queue.submit(type="code", dependencies=["not-yet"])).id

        return self.on_queue(make)

    def dag(self) -> str:
        async def make(queue: Queue) -> str:
            made = await steps.submit_dag(queue, {"a": [], "b": ["a"]}, title="Page")
            return (await queue.get(made["a"])).dag_id

        return self.on_queue(make)

    def signature(self) -> str:
        self.dead()

        async def look(queue: Queue) -> str:
            return str((await queue.failure_groups())[0]["signature"])

        return self.on_queue(look)

    def token(self) -> str:
        async def make(queue: Queue) -> str:
            return (await queue.create_token("ci", ["work"])).id

        return self.on_queue(make)

    def fill(self, line: str) -> list[str]:
        """A command line in which `{ready}` stands for a task just made."""
        makers = {"{" + make.__name__ + "}": make for make in (self.ready, self.dead, self.done, self.waiting)}
        makers |= {"{" + make.__name__ + "}": make for make in (self.claimed, self.running, self.alert)}
        makers |= {"{dag}": self.dag, "{signature}": self.signature, "{token}": self.token}
        return [makers[word]() if word in makers else word for word in line.split(" ")]
