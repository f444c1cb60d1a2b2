"""One run of an agent that speaks the Agent Client Protocol: a session, a prompt, its updates and its permissions."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import acp
import msgspec
from acp import schema

from shiftwork.model import reasons
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.reports import Instruction
from shiftwork.worker import command_line, exit_status
from shiftwork.worker.command_attempt import CommandAttempt
from shiftwork.worker.context import Done, Fail, Release, Suspended
from shiftwork.worker.error_text import clean
from shiftwork.worker.output import MAX_BYTES, MAX_INPUT_LENGTH, AgentMessage, Final, ParsedEvent, Tokens
from shiftwork.worker.process_group import Group

MAX_QUESTION_LENGTH = 2_000
CANCEL_SEC = 2.0
"""How long a cancelled agent has to end its turn before its processes are killed."""

Answer = Literal["allow", "deny", "cancel"]
_KINDS: dict[Answer, tuple[str, ...]] = {
    "allow": ("allow_once", "allow_always"),
    "deny": ("reject_once", "reject_always"),
    "cancel": (),
}
_SCHEMA = {"type": "string", "enum": ["allow", "deny"]}
_STOPPED = {
    "max_tokens": "it reached its limit of tokens",
    "max_turn_requests": "it reached its limit of requests in a turn",
    "refusal": "the agent refused to continue",
    "cancelled": "its turn was cancelled",
}
_AUTH_REQUIRED = -32_000


class Question(NamedTuple):
    """A request for permission that a person answers."""

    name: str
    text: str
    answer: asyncio.Future[Answer]


class _UnansweredError(Exception):
    """Raised when the agent asks a question that no person has answered yet."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.name)
        self.question = question


class AcpAttempt(CommandAttempt):
    """The client of one agent."""

    _problem: Fail | None = None
    _stop_reason: str | None = None
    _session_id: str | None = None
    _used = Tokens(0, 0)
    _told: Sequence[str] = ()
    """Instructions not passed to the agent yet."""
    _replaying = False
    """Set while a session is loaded, because the agent sends its history again."""
    _connection: Any = None
    """The SDK's connection; its methods are those of an agent."""

    async def run(self, agent_id: str) -> Done:
        """Run the agent. A question ends it and suspends the task; once answered, the agent runs again in its
        session.
        """
        try:
            return await super().run(agent_id)
        except _UnansweredError as asks:
            name, text, _ = asks.question
            await self._context.ask(name, text, schema=_SCHEMA)
            raise Release from asks  # it was answered just now

    async def _work(self, group: Group) -> bool:
        reader, self._questions = asyncio.StreamReader(limit=MAX_BYTES), asyncio.Queue[Question]()
        await group.listen(reader.feed_data, self._feed_stderr)
        client: Any = _Client(self)  # a method we do not offer
        self._connection = acp.connect_to_agent(client, await group.writer(), reader)
        try:
            async with asyncio.timeout(self._limit_sec()):
                await self._while_running(group, self._converse())
        except TimeoutError:
            return False
        except acp.RequestError as error:
            self._problem = self._failure(error)
        finally:
            with suppress(Exception):  # whatever the agent is doing, its processes are ended next
                async with asyncio.timeout(CANCEL_SEC):
                    await self._connection.close()
        await group.terminate(self._program.kill_after_sec)  # otherwise it would wait for another prompt
        return True

    async def _while_running(self, group: Group, talk: Any) -> None:
        """Run the conversation while the agent's process lives; a question to a person ends it."""
        talking, ended = asyncio.ensure_future(talk), asyncio.ensure_future(group.ended())
        asking = asyncio.ensure_future(self._answer_or_suspend())
        try:
            await asyncio.wait({talking, ended, asking}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                raise _UnansweredError(await asking)
            if talking.done():
                await talking
        finally:
            suspended = asking.done() and not asking.cancelled() and isinstance(asking.exception(), Suspended)
            if not talking.done():
                await self._cancel(talking, alive=not ended.done() and not suspended)  # its claim is over then
            for each in (ended, asking):
                each.cancel()
            talking.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _cancel(self, talking: asyncio.Future[None], *, alive: bool) -> None:
        """Let the agent end its turn gracefully."""
        try:
            if self._session_id is not None and alive:
                await self._connection.cancel(session_id=self._session_id)
                await asyncio.wait({talking}, timeout=CANCEL_SEC)
        except (acp.RequestError, OSError, RuntimeError):  # the agent has ended
            return
        finally:
            talking.cancel()

    async def _converse(self) -> None:
        agent, cwd = self._connection, str(self._call.work_dir)
        able = await agent.initialize(
            protocol_version=acp.PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(),
            client_info=schema.Implementation(name="shiftwork", version="1"),
        )
        known = self._call.session_id
        if known is not None and able.agent_capabilities and able.agent_capabilities.load_session:
            self._session_id = await self._loaded(known, cwd)
        if self._session_id is None:
            self._session_id = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id
        self._record(ParsedEvent(session_id=self._session_id))
        await self._prompt("\n\n".join([command_line.prompt_of(self._call.task), *self._new_instructions()]))
        while self._stop_reason == "end_turn" and (more := self._new_instructions()):
            await self._prompt("\n\n".join(more))
        self._record(ParsedEvent(final=Final()))

    async def _prompt(self, text: str) -> None:
        """Run one turn."""
        answer = await self._connection.prompt(session_id=self._session_id, prompt=[acp.text_block(text)])
        self._stop_reason = answer.stop_reason
        if (used := answer.usage) is not None:
            cached, before = used.cached_read_tokens or 0, self._used
            read = before.read + used.input_tokens + cached
            self._used = Tokens(read, before.written + used.output_tokens, before.cached + cached)
            self._record(ParsedEvent(tokens=self._used))

    def _new_instructions(self) -> list[str]:
        """Take the instructions sent to the task since the last turn began."""
        texts, self._told = self._told, ()
        return list(texts)

    def _write_down(self, instructions: Sequence[Instruction]) -> None:
        """Record an instruction, which becomes a turn of its own after the current one."""
        super()._write_down(instructions)
        self._told = [*self._told, *(each.text for each in instructions)]

    async def _loaded(self, session_id: str, cwd: str) -> str | None:
        """Load the session, if the agent still has it."""
        self._replaying = True
        try:
            await self._connection.load_session(session_id=session_id, cwd=cwd, mcp_servers=[])
        except acp.RequestError:
            self._reporter.add_messages(
                [AgentMessage("error", f"the agent has no session {session_id}; starting a new one")]
            )
            return None
        finally:
            self._replaying = False
        return session_id

    def _record(self, event: ParsedEvent) -> None:
        self._reporter.add_messages(self._transcript.record(event))

    def on_update(self, update: Any) -> None:
        """Handle an update of the session."""
        if not self._replaying:
            self._record(read_update(update))

    async def on_permission_request(self, call: Any, options: Sequence[Any]) -> Any:
        """Answer a request for permission."""
        policy = self._program.permissions
        words = call.title or "a tool"
        answer: Answer = policy if policy != "ask" else await self._ask_person(words, call.raw_input)
        chosen = next((each for kind in _KINDS[answer] for each in options if each.kind == kind), None)
        decision = "pending" if answer == "cancel" else "denied" if answer == "deny" or not chosen else "allowed"
        self._reporter.add_messages([AgentMessage("tool_call", f"{decision}: {words}", {"permission": decision})])
        if chosen is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        return schema.RequestPermissionResponse(outcome=outcome)

    async def _ask_person(self, words: str, given: Any) -> Answer:
        """Get a person's answer. It is keyed by the question, which the agent's next run repeats."""
        text = f"May the agent do this? {words}\n{_written(given)}".strip()[:MAX_QUESTION_LENGTH]
        name = f"permission {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        question = Question(name, clean(text, MAX_QUESTION_LENGTH), asyncio.get_running_loop().create_future())
        self._questions.put_nowait(question)
        return await question.answer

    async def _answer_or_suspend(self) -> Question:
        """Return a person's earlier answer to the question; otherwise suspend the task."""
        answers: dict[str, Answer] = {}
        while True:
            question = await self._questions.get()
            name, text, answer = question
            if self._call.session_id is None:
                answer.set_result("cancel")
                return question
            if name not in answers:
                given = await self._context.ask(name, text, schema=_SCHEMA)
                answers[name] = "allow" if given == "allow" else "deny"
            answer.set_result(answers[name])

    def _failure(self, error: acp.RequestError) -> Fail:
        detail = "" if error.data is None else _written(error.data)
        text = exit_status.error_text(f"the agent returned an error: {error} {detail}".strip(), None, self._stderr)
        reason = reasons.AUTH_FAILURE if error.code == _AUTH_REQUIRED else reasons.AGENT_ERROR
        return Fail(reason, text, data=exit_status.provider_data(text, self._facts(), time.time()))

    def _interpret(self, code: int, *, in_time: bool) -> Done:
        if self._problem is not None:
            raise self._problem
        if not in_time or self._stop_reason is None:
            return super()._interpret(code or 1, in_time=in_time)
        if self._stop_reason != "end_turn":
            reason = reasons.SAFETY_VIOLATION if self._stop_reason == "refusal" else reasons.AGENT_ERROR
            raise Fail(reason, _STOPPED.get(self._stop_reason, self._stop_reason))
        return super()._interpret(0, in_time=True)


class _Client:
    """The methods an agent may call. We offer no files and no terminals: it works in its folder itself."""

    def __init__(self, attempt: AcpAttempt) -> None:
        self._attempt = attempt

    async def session_update(self, update: Any, **_: Any) -> None:
        self._attempt.on_update(update)

    async def request_permission(self, tool_call: Any, options: list[Any], **_: Any) -> Any:
        return await self._attempt.on_permission_request(tool_call, options)

    def on_connect(self, conn: Any) -> None:
        """Nothing to prepare."""


def read_update(update: Any) -> ParsedEvent:
    """Convert an update to a transcript event. Thoughts and plans are left out."""
    if isinstance(update, schema.AgentMessageChunk):
        words = getattr(update.content, "text", None)
        return ParsedEvent((AgentMessage("text", words, in_parts=True),)) if words else ParsedEvent()
    if isinstance(update, schema.ToolCallStart):
        data = {"input": _written(update.raw_input), "kind": update.kind}
        return ParsedEvent((AgentMessage("tool_call", update.title, data),))
    if isinstance(update, schema.ToolCallProgress) and update.status == "failed":
        return ParsedEvent((AgentMessage("error", f"{update.title or 'a tool'} failed: {_content(update.content)}"),))
    if isinstance(update, schema.UsageUpdate) and update.cost is not None and update.cost.currency == "USD":
        return ParsedEvent(cost_usd=max(0.0, update.cost.amount))
    return ParsedEvent()


def _content(content: Any) -> str:
    texts = (getattr(getattr(each, "content", None), "text", None) for each in content or ())
    return "\n".join(filter(None, texts))[:MAX_INPUT_LENGTH]


def _written(value: Any) -> str:
    if value is None:
        return ""
    try:
        return msgspec.json.encode(value).decode()[:MAX_INPUT_LENGTH]
    except (TypeError, ValueError):
        return str(value)[:MAX_NAME]
