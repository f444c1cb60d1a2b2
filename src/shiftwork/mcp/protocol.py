"""The tools, resources and prompts as a server of the official SDK offers them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from shiftwork.mcp import calling, guide, refusals, resources
from shiftwork.mcp.desk import McpServer, McpSession
from shiftwork.mcp.tool import Tool, schema_of
from shiftwork.model.errors import ShiftworkError

Context = ServerRequestContext[Any, Any]
SeatOf = Callable[[Context], McpSession]
ERROR = "shiftwork/error"
"""Where a refused call has its error for programs, in the metadata of the result."""


def build(mcp_server: McpServer, seat_of: SeatOf) -> Server[Any]:
    """The server over a desk; `seat_of` says who calls."""
    offers = _Offers(mcp_server, seat_of)
    return Server(
        "shiftwork",
        version=version("shiftwork"),
        title="Shiftwork",
        description="A durable task queue for fleets of AI agents.",
        instructions=guide.instructions(mcp_server.options.role),
        get_tool_input_schema=_input_schema,
        on_list_tools=offers.list_tools,
        on_call_tool=offers.call_tool,
        on_list_resources=offers.list_resources,
        on_list_resource_templates=offers.list_resource_templates,
        on_read_resource=offers.read_resource,
        on_list_prompts=offers.list_prompts,
        on_get_prompt=offers.get_prompt,
    )


def _input_schema(name: str) -> dict[str, Any] | None:
    tool = calling.TOOLS.get(name)
    return None if tool is None else schema_of(tool.takes)


class _Offers:
    """The SDK's requests, each answered from the desk."""

    def __init__(self, mcp_server: McpServer, seat_of: SeatOf) -> None:
        self._desk = mcp_server
        self._session_of = seat_of

    async def list_tools(self, ctx: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in calling.offered(self._session_of(ctx))])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = calling.TOOLS.get(params.name)
        if tool is None or not tool.is_for(self._desk.options.role):
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; tools/list lists the tools")
        reply = await calling.call(self._session_of(ctx), tool, params.arguments or {})
        text = types.TextContent(type="text", text=reply.text)
        if reply.error is not None:
            # Clients check structured content against the tool's output schema, which an error does not fit: they
            # would show that mismatch in place of the error. Programs find its fields in the metadata.
            return types.CallToolResult(content=[text], is_error=True, _meta={ERROR: reply.error})
        return types.CallToolResult(content=[text], structured_content=reply.content)

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
            raise MCPError(types.INVALID_PARAMS, refusals.sentence(error), {"error": refusals.as_data(error)}) from None
        contents = types.TextResourceContents(uri=uri, mime_type=resources.MEDIA_TYPE, text=text)
        return types.ReadResourceResult(contents=[contents])

    async def list_prompts(
        self, _ctx: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[_prompt(each) for each in guide.guides(self._desk.options.role)])

    async def get_prompt(self, _ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        known = {each.name: each for each in guide.guides(self._desk.options.role)}
        if (chosen := known.get(params.name)) is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r}; there are {', '.join(known)}")
        text = types.TextContent(type="text", text=guide.filled(chosen, params.arguments or {}))
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
    )


def _prompt(chosen: guide.Guide) -> types.Prompt:
    arguments = [
        types.PromptArgument(name=name, description=what, required=name == "goal")
        for name, what in chosen.arguments.items()
    ]
    return types.Prompt(name=chosen.name, description=chosen.description, arguments=arguments)
