// Submits work as a task of 2025-11-25, does it over the same connection, and prints the handle and the result.
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "test", version: "1" }, { capabilities: {} });
await client.connect(new StdioClientTransport({ command, args }));
const session = createTaskSessionFromClient(client, { endpointId: "queue" });
const execution = await session.callTool("submit", { tasks: [{ type: "code" }] }, { task: { preference: "require" } });
const claimed = await client.callTool({ name: "claim", arguments: {} });
const { token } = claimed.structuredContent.task;
await client.callTool({ name: "complete", arguments: { token, text: "done" } });
const { outcome } = await execution.settle();
console.log(JSON.stringify({ handle: execution.handle, result: resultFromTaskOutcome(outcome) }));
await session.close();
await client.close();
