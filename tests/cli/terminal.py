"""Runs commands as a person would, with tasks in every state."""

import asyncio
import base64
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
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

    def __init__(self, url: str, folder: Path | None = None) -> None:
        self.url = url
        self._folder = folder
        self._mules = 0
        self._key = ""

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
        """Run calls on the queue for which there is no command."""

        async def run() -> T:
            async with Queue.open(self.url) as queue:
                return await action(queue)

        return asyncio.run(run())

    def _mule(self) -> str:
        """A separate agent for each task, so that no other task interferes."""
        self._mules += 1
        return "mule" if self._mules == 1 else f"mule-{self._mules}"

    def ready(self) -> str:
        async def make(queue: Queue) -> str:
            return (await queue.submit(type="code", title="Write it", payload={"file": "a.py"}, tags=["web"])).id

        return self.on_queue(make)

    def dead(self) -> str:
        mule = self._mule()

        async def make(queue: Queue) -> str:
            await queue.agents.register(id=mule)
            made = await queue.submit(type="doomed", target_agent_id=mule)
            (claim,) = await queue.claim(mule, start=True, types=["doomed"])
            await queue.fail(claim.token, "crash", "boom", retry=False)
            return made.id

        return self.on_queue(make)

    def done(self) -> str:
        mule = self._mule()

        async def make(queue: Queue) -> str:
            await queue.agents.register(id=mule)
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

    def logged(self) -> str:
        """A task whose agent has logged something."""
        token = self.running()
        self.on_queue(lambda queue: queue.claims.log(token, [{"text": "fetched"}]))
        return token.partition(".")[0]

    def submitted_output(self) -> str:
        """A claim whose output waits for the verdict of its tests."""
        mule = self._mule()

        async def make(queue: Queue) -> str:
            await queue.submit(type="tested", target_agent_id=mule, output={"validation": "test-pass"})
            (claim,) = await queue.claim(mule, start=True, types=["tested"])
            await queue.complete(claim.token, "a patch")
            return claim.token

        return self.on_queue(make)

    def acting(self) -> str:
        """A claim under which an effect was begun, whose key is `acted`."""
        self._key = self.running()
        self.on_queue(lambda queue: queue.effects.begin(self._key, key=self._key))
        return self._key

    def acted(self) -> str:
        return self._key

    def doubted(self) -> str:
        """The key of an effect whose outcome is unknown."""
        token = self.acting()
        self.on_queue(lambda queue: queue.fail(token, "effect_unknown"))
        return token

    def alert(self) -> str:
        self.dead()

        async def look(queue: Queue) -> str:
            return str((await queue.alerts.list(open_only=True))[-1].seq)

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
            return str((await queue.dead_letters.groups())[0].signature)

        return self.on_queue(look)

    def token(self) -> str:
        async def make(queue: Queue) -> str:
            return (await queue.tokens.create("ci", ["work"])).id

        return self.on_queue(make)

    def rules(self) -> str:
        """A file with the rules of breakers."""
        assert self._folder is not None
        path = self._folder / "circuit-breakers.yaml"
        path.write_text("overrides:\n  code:\n    failureThreshold: 2  # touchy\n", encoding="utf-8")
        return str(path)

    def file(self) -> str:
        """A file with something in it."""
        assert self._folder is not None
        path = self._folder / "notes.md"
        path.write_text("# notes")
        return str(path)

    def artifact(self) -> str:
        async def make(queue: Queue) -> str:
            return (await queue.artifacts.put(b"bytes", name="notes.txt")).id

        return self.on_queue(make)

    def signalled(self) -> str:
        """A claim of a task that has been sent the event `go`."""
        token = self.running()
        self.on_queue(lambda queue: queue.waits.signal("go", "it went", task=token.partition(".")[0]))
        return token

    def asking(self) -> str:
        """A task that asks a question."""
        token = self.running()
        self.on_queue(lambda queue: queue.waits.wait(token, "where", question="Where to?"))
        return token.partition(".")[0]

    def guarded(self) -> str:
        """A task that someone must approve."""

        async def make(queue: Queue) -> str:
            await queue.settings.set("guards", [{"type": "careful"}])
            return (await queue.submit(type="careful", title="Ship it")).id

        return self.on_queue(make)

    def typed(self) -> str:
        """A type with a schema."""
        name = f"type-{secrets.token_hex(4)}"
        return self.on_queue(lambda queue: queue.types.save(name, payload_schema={"type": "object"})).name

    def sink(self) -> str:
        """A sink that gets no notifications."""
        name = f"sink-{secrets.token_hex(4)}"
        self.on_queue(lambda queue: queue.sinks.add(name, "webhook", "https://example.com/in"))
        return name

    def signing(self) -> str:
        """A file with a key for webhooks."""
        assert self._folder is not None
        path = self._folder / "signing.key"
        path.write_text("whsec_" + base64.b64encode(bytes(32)).decode())
        return str(path)

    def delivery(self) -> str:
        name = self.sink()
        return str(self.on_queue(lambda queue: queue.sinks.test(name)).id)

    def fill(self, line: str) -> list[str]:
        """A command line in which `{ready}` stands for a task just made."""
        makers = {"{" + make.__name__ + "}": make for make in (self.ready, self.dead, self.done, self.waiting)}
        makers |= {"{" + make.__name__ + "}": make for make in (self.claimed, self.running, self.alert)}
        makers |= {
            "{dag}": self.dag,
            "{signature}": self.signature,
            "{token}": self.token,
            "{submitted_output}": self.submitted_output,
        }
        makers |= {"{" + make.__name__ + "}": make for make in (self.acting, self.acted, self.doubted)}
        makers |= {"{logged}": self.logged, "{file}": self.file, "{artifact}": self.artifact, "{rules}": self.rules}
        makers |= {"{signalled}": self.signalled, "{asking}": self.asking, "{guarded}": self.guarded}
        makers |= {"{typed}": self.typed}
        makers |= {"{sink}": self.sink, "{delivery}": self.delivery, "{signing}": self.signing}
        return [makers[word]() if word in makers else word for word in line.split(" ")]
