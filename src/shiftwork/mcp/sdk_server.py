"""Serves the tools, resources and prompts with the official SDK."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from shiftwork.mcp import prompts, resources, task_methods, tool_calls, tool_errors
from shiftwork.mcp.mcp_server import McpServer, Options, open_context
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.task_methods import TaskMethods
from shiftwork.mcp.task_subscriptions import TaskSubscriptions
from shiftwork.mcp.tool import Tool, schema_of
from shiftwork.model.errors import ShiftworkError
from shiftwork.operation.interface import AnyQueue

Context = ServerRequestContext[Any, Any]
SessionOf = Callable[[Context], McpSession]


def build(mcp_server: McpServer, session_of: SessionOf) -> Server[Any]:
    """Build the SDK's server; `session_of` identifies the caller."""
    offers = _Offers(mcp_server, session_of)
    server = _Server(
        "shiftwork",
        version=version("shiftwork"),
        title="Shiftwork",
        description="A durable task queue for fleets of AI agents.",
        instructions=prompts.instructions(mcp_server.options.role),
        get_tool_input_schema=_input_schema,
        on_list_tools=offers.list_tools,
        on_call_tool=offers.call_tool,
        on_list_resources=offers.list_resources,
        on_list_resource_templates=offers.list_resource_templates,
        on_read_resource=offers.read_resource,
        on_list_prompts=offers.list_prompts,
        on_get_prompt=offers.get_prompt,
        on_subscriptions_listen=TaskSubscriptions(session_of),
    )
    offers.tasks.add_to(server)
    return server


class _Server(Server[Any]):
    """Declares the capabilities: notifications about tasks only, and the tasks of 2025-11-25."""

    def get_capabilities(self, *args: Any, **named: Any) -> types.ServerCapabilities:
        found = super().get_capabilities(*args, **named)
        for part in (found.tools, found.prompts, found.resources):
            if part is not None:
                part.list_changed = False
        if found.resources is not None:
            found.resources.subscribe = False
        if named.get("protocol_version") not in MODERN_PROTOCOL_VERSIONS:
            tools = types.TasksToolsCapability(call=types.TasksCallCapability())
            found.tasks = types.ServerTasksCapability(
                list=types.TasksListCapability(),
                cancel=types.TasksCancelCapability(),
                requests=types.ServerTasksRequestsCapability(tools=tools),
            )
        return found


def _input_schema(name: str) -> dict[str, Any] | None:
    tool = tool_calls.TOOLS.get(name)
    return None if tool is None else schema_of(tool.takes)


class _Offers:
    """Answers the SDK's requests from the queue."""

    def __init__(self, mcp_server: McpServer, session_of: SessionOf) -> None:
        self._server = mcp_server
        self._session_of = session_of
        self.tasks = TaskMethods(session_of)

    async def list_tools(self, ctx: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tool_calls.offered(self._session_of(ctx))])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        tool = tool_calls.TOOLS.get(params.name)
        if tool is None or not tool.is_for(self._server.options.role):
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; tools/list lists the tools")
        arguments = params.arguments or {}
        if tool.name == task_methods.SUBMIT:
            task = await self.tasks.call(ctx, arguments)
            if task is not None:
                return task
        return (await tool_calls.call(self._session_of(ctx), tool, arguments)).as_result()

    async def list_resources(
        self, _ctx: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        found = [
            types.Resource(uri=each.uri, name=each.name, description=each.description, mime_type=resources.MEDIA_TYPE)
            for each in resources.FIXED
        ]
        return types.ListResourcesResult(resources=found)

    async def list_resource_templates(
        self, _ctx: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        tasks = resources.TASKS
        template = types.ResourceTemplate(
            uri_template=tasks.uri, name=tasks.name, description=tasks.description, mime_type=resources.MEDIA_TYPE
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            text = await resources.read(self._session_of(ctx), uri)
        except ShiftworkError as error:
            raise MCPError(
                types.INVALID_PARAMS, tool_errors.sentence(error), {"error": tool_errors.as_data(error)}
            ) from None
        contents = types.TextResourceContents(uri=uri, mime_type=resources.MEDIA_TYPE, text=text)
        return types.ReadResourceResult(contents=[contents])

    async def list_prompts(
        self, _ctx: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[_prompt(each) for each in prompts.prompts_for(self._server.options.role)]
        )

    async def get_prompt(self, _ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        known = {each.name: each for each in prompts.prompts_for(self._server.options.role)}
        if (chosen := known.get(params.name)) is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r}; there are {', '.join(known)}")
        text = types.TextContent(type="text", text=prompts.filled(chosen, params.arguments or {}))
        message = types.PromptMessage(role="user", content=text)
        return types.GetPromptResult(description=chosen.description, messages=[message])


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.reads,
        destructive_hint=tool.destroys,
        idempotent_hint=tool.reads or tool.idempotent,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=schema_of(tool.takes),
        output_schema=schema_of(tool.gives),
        annotations=hints,
        execution=types.ToolExecution(task_support="optional") if tool.name == task_methods.SUBMIT else None,
    )


def _prompt(chosen: prompts.Prompt) -> types.Prompt:
    arguments = [
        types.PromptArgument(name=name, description=what, required=name == "goal")
        for name, what in chosen.arguments.items()
    ]
    return types.Prompt(name=chosen.name, description=chosen.description, arguments=arguments)


async def serve_stdio(queue: AnyQueue, options: Options) -> None:
    """Serve until the client closes our standard input."""
    async with open_context(queue, options) as mcp_server:
        session = McpSession.single(mcp_server)
        server = build(mcp_server, lambda _ctx: session)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
