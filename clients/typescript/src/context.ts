/** The argument of a handler: its task, and the operations that its claim allows. */

import type { Client, NewTask, Schemas, Submitted, Task, Usage } from "./client.js";
import { LeaseLost } from "./errors.js";

/** Thrown by a handler: the attempt failed for this reason. */
export class Fail extends Error {
  constructor(
    message: string,
    /** `timeout`, `rate_limit`, `auth_failure`, ... or a reason of your own. */
    readonly reason: string = "agent_error",
    readonly options: { retry?: boolean; data?: unknown } = {},
  ) {
    super(message);
    this.name = "Fail";
  }
}

/** Thrown by a handler: release the task without counting an attempt. */
export class Release extends Error {
  constructor(message = "released by its handler") {
    super(message);
    this.name = "Release";
  }
}

export class Context<Payload = Record<string, unknown>> {
  readonly task: Task;
  readonly token: string;
  /** The model that the queue chose for this attempt, if the task asks for one. */
  readonly model: string | null;
  /** Aborted if the task is cancelled, its lease is lost, or the worker stops. Pass it to `fetch` and similar calls. */
  readonly signal: AbortSignal;
  readonly #client: Client;
  /** If the cost is null, the queue computes it from tokens and model. */
  readonly #usage: { cost_usd: number | null; tokens_in: number; tokens_out: number; tokens_cached: number } = {
    cost_usd: null,
    tokens_in: 0,
    tokens_out: 0,
    tokens_cached: 0,
  };
  #yields: string | null = null;
  /** The number of the last instruction that the handler received. */
  #lastInstruction = 0;

  constructor(client: Client, assignment: Schemas["AssignmentRecord"], signal: AbortSignal) {
    this.#client = client;
    this.task = assignment.task;
    this.token = assignment.token;
    this.model = assignment.model ?? null;
    this.signal = signal;
  }

  get id(): string {
    return this.task.id;
  }

  get type(): string {
    return this.task.type;
  }

  get payload(): Payload {
    return (this.task.payload ?? {}) as Payload;
  }

  /** Why this task should soon make way for an urgent one; null if it need not. */
  get yields(): string | null {
    return this.#yields;
  }

  /** @internal */
  askToYield(why: string): void {
    this.#yields = why;
  }

  /**
   * Returns and acknowledges the instructions sent to this task since the last call, in order. The first call returns
   * all of them, also those that an earlier attempt acknowledged (`acknowledged_at`).
   */
  async inbox(): Promise<Schemas["Instruction"][]> {
    const path = { task_id: this.id };
    const body = { token: this.token, after: this.#lastInstruction };
    const { instructions } = await this.#client.call("claims_inbox", { path, body, signal: this.signal });
    const last = instructions.at(-1)?.seq;
    if (last === undefined) return [];
    await this.#client.call("claims_acknowledge", { path, body: { token: this.token, seq: last }, signal: this.signal });
    this.#lastInstruction = last;
    return instructions;
  }

  /** Run an action and store its result. Later attempts get the stored result instead of running it again. */
  async step<T>(name: string, action: () => T | Promise<T>, options: { usage?: Usage } = {}): Promise<T> {
    const path = { task_id: this.id };
    const begun = await this.#client.call("steps_begin", { path, body: { token: this.token, name }, signal: this.signal });
    if (begun.status === "done") return begun.result as T;
    this.signal.throwIfAborted();
    const result = await action();
    const body = { token: this.token, name, result: result ?? null, ...options };
    const done = await this.#client.call("steps_complete", { path, body });
    return done.result as T;
  }

  /** Submit subtasks. They share the budget of this task. */
  async spawn(tasks: NewTask | NewTask[]): Promise<Submitted[]> {
    const body = { token: this.token, tasks: Array.isArray(tasks) ? tasks : [tasks] };
    return (await this.#client.call("spawn", { path: { task_id: this.id }, body, signal: this.signal })).tasks;
  }

  /** Report progress. */
  async progress(progress: unknown): Promise<void> {
    const body = { token: this.token, progress };
    await this.#client.call("claims_progress", { path: { task_id: this.id }, body, signal: this.signal });
  }

  /** Add a line to the agent's messages on the task's page. */
  async message(text: string, kind: "text" | "tool_call" | "error" = "text"): Promise<void> {
    const body = { token: this.token, kind, text };
    await this.#client.call("claims_message", { path: { task_id: this.id }, body, signal: this.signal });
  }

  /** Add to the usage of this attempt, which is booked with its result. */
  spent(usage: Usage): void {
    if (usage.cost_usd != null) this.#usage.cost_usd = (this.#usage.cost_usd ?? 0) + usage.cost_usd;
    this.#usage.tokens_in += usage.tokens_in ?? 0;
    this.#usage.tokens_out += usage.tokens_out ?? 0;
    this.#usage.tokens_cached += usage.tokens_cached ?? 0;
  }

  /** @internal */
  usage(): Usage | null {
    const { cost_usd, tokens_in, tokens_out } = this.#usage;
    return cost_usd !== null || tokens_in || tokens_out ? { ...this.#usage } : null;
  }

  /** Throws `LeaseLost`, or the reason for the stop, if the handler has to end. */
  check(): void {
    if (this.signal.aborted && this.signal.reason instanceof LeaseLost) throw this.signal.reason;
    this.signal.throwIfAborted();
  }
}
