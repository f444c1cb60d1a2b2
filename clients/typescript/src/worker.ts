/** A worker: claims tasks, keeps their leases, runs handlers, reports their results, and stops gracefully. */

import { type Client, type Schemas, sleep } from "./client.js";
import { Context, Fail, Release } from "./context.js";
import { LeaseLost, ShiftworkError } from "./errors.js";

export type Handler<Payload = Record<string, unknown>, Output = unknown> = (
  context: Context<Payload>,
) => Output | Promise<Output>;

export interface WorkerOptions {
  agentId: string;
  /** How many tasks it runs at once; default 1. */
  concurrency?: number;
  capabilities?: string[];
  models?: string[];
  provider?: string;
  account?: string;
  /** How long running handlers may continue after `stop`; default 30 s. */
  stopGraceMs?: number;
  /** Receives log lines; default `console.error`. */
  log?: (line: string, error?: unknown) => void;
}

export interface RunOptions {
  /** Return once nothing can be claimed and nothing is running. */
  untilIdle?: boolean;
  /** Stops the worker when it is aborted, as `stop` does. */
  signal?: AbortSignal;
  /** Stop on SIGTERM and SIGINT if the platform has them (Node); default true. */
  handleSignals?: boolean;
}

/** The tasks of one run, counted by outcome. */
export interface Summary {
  completed: number;
  failed: number;
  released: number;
  cancelled: number;
  lost: number;
}

interface Running {
  context: Context;
  abort: AbortController;
  /** Why the handler has to end early; null while it need not. */
  ending: "cancelled" | "lost" | "stopped" | null;
  done: Promise<void>;
}

const CLAIM_WAIT_SEC = 20;
const DEFAULT_HEARTBEAT_SEC = 10;
/** Retry reports longer than claims: work whose report is lost is done again. */
const RESULT_PATIENCE_MS = 60_000;
const AFTER_ERROR_MS = 1_000;

export class Worker {
  readonly runtimeId: string;
  readonly #client: Client;
  readonly #options: WorkerOptions;
  readonly #handlers = new Map<string, Handler<any, unknown>>();
  readonly #running = new Map<string, Running>();
  #stopping = new AbortController();
  #summary: Summary = { completed: 0, failed: 0, released: 0, cancelled: 0, lost: 0 };
  #heartbeatSec = DEFAULT_HEARTBEAT_SEC;

  constructor(client: Client, options: WorkerOptions) {
    this.#client = client;
    this.#options = options;
    this.runtimeId = `${options.agentId}-${crypto.randomUUID().slice(0, 8)}`;
  }

  /** Register the handler of a task type. Its return value is the task's result. */
  handle<Payload = Record<string, unknown>, Output = unknown>(type: string, handler: Handler<Payload, Output>): this {
    if (this.#handlers.has(type)) throw new Error(`type ${type} already has a handler`);
    this.#handlers.set(type, handler);
    return this;
  }

  /** Stop claiming and let running handlers end; then `run` returns. */
  stop(): void {
    this.#stopping.abort(new Error("the worker was stopped"));
  }

  /** Work until stopped or, with `untilIdle`, until there is nothing left to do. */
  async run(options: RunOptions = {}): Promise<Summary> {
    if (this.#handlers.size === 0) throw new Error("the worker has no handlers; add one with handle()");
    this.#stopping = new AbortController();
    this.#summary = { completed: 0, failed: 0, released: 0, cancelled: 0, lost: 0 };
    const stop = (): void => this.stop();
    const undo = options.handleSignals === false ? () => {} : onSignals(stop);
    options.signal?.addEventListener("abort", stop, { once: true });
    if (options.signal?.aborted) stop();
    const heartbeatStop = new AbortController();
    let heartbeats: Promise<void> = Promise.resolve();
    try {
      await this.#register();
      heartbeats = this.#sendHeartbeats(heartbeatStop.signal);
      await this.#claimAndWork(options.untilIdle ?? false);
    } finally {
      await this.#finish();
      heartbeatStop.abort();
      await heartbeats;
      options.signal?.removeEventListener("abort", stop);
      undo();
    }
    return { ...this.#summary };
  }

  async #register(): Promise<void> {
    const { agentId, capabilities, models, provider, account } = this.#options;
    const body: Schemas["NewAgent"] = { id: agentId, types: this.#types(), max_concurrent_tasks: this.#slots() };
    if (capabilities) body.capabilities = capabilities;
    if (models) body.models_available = models;
    if (provider) body.provider = provider;
    if (account) body.account = account;
    await this.#client.call("agents_register", { body });
  }

  #types(): string[] {
    return [...this.#handlers.keys()].sort();
  }

  #slots(): number {
    return this.#options.concurrency ?? 1;
  }

  async #claimAndWork(untilIdle: boolean): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      if (this.#running.size >= this.#slots()) {
        await this.#waitForAnyEnd();
        continue;
      }
      const wasIdle = this.#running.size === 0;
      const found = await this.#claim(untilIdle ? 0 : CLAIM_WAIT_SEC);
      for (const assignment of found ?? []) this.#begin(assignment);
      if (untilIdle && found?.length === 0) {
        if (wasIdle) return;
        await this.#waitForAnyEnd();
      }
    }
  }

  /** Returns the claimed tasks, or null if the call failed. */
  async #claim(waitSec: number): Promise<Schemas["AssignmentRecord"][] | null> {
    const key = crypto.randomUUID();
    const body = {
      agent_id: this.#options.agentId,
      runtime_id: this.runtimeId,
      count: this.#slots() - this.#running.size,
      types: this.#types(),
      start: true,
      wait_sec: waitSec,
    };
    try {
      const answer = await this.#client.call("claims_request", {
        body,
        idempotencyKey: key,
        signal: this.#stopping.signal,
      });
      return answer.assignments;
    } catch (error) {
      if (this.#stopping.signal.aborted) {
        await this.#releaseClaimsOf(key);
        return null;
      }
      if (error instanceof ShiftworkError && (error.status === 401 || error.status === 403)) throw error;
      this.#log("cannot claim", error);
      await sleep(AFTER_ERROR_MS, this.#stopping.signal).catch(() => {});
      return null;
    }
  }

  /** The server may have executed an interrupted claim: release the tasks that its answer would have listed. */
  async #releaseClaimsOf(key: string): Promise<void> {
    try {
      const made = await this.#client.call("claims_made_by_request", {
        query: { who: this.#options.agentId, request: key },
      });
      const tokens = made.tasks.flatMap((task) => task.claim?.assignment_id ?? []);
      if (tokens.length) await this.#client.call("batch_release", { body: { tokens, reason: "the worker stopped" } });
    } catch (error) {
      this.#log("cannot release the tasks of an interrupted claim; they wait until their leases expire", error);
    }
  }

  #begin(assignment: Schemas["AssignmentRecord"]): void {
    const abort = new AbortController();
    const context = new Context(this.#client, assignment, abort.signal);
    const running: Running = { context, abort, ending: null, done: Promise.resolve() };
    this.#heartbeatSec = Math.min(this.#heartbeatSec, assignment.heartbeat_interval_sec);
    this.#running.set(assignment.token, running);
    running.done = this.#execute(running).finally(() => this.#running.delete(assignment.token));
  }

  async #execute(running: Running): Promise<void> {
    const { context } = running;
    const handler = this.#handlers.get(context.type);
    try {
      if (!handler) throw new Release(`no handler for ${context.type}`);
      const data = await handler(context);
      await this.#complete(running, data);
    } catch (error) {
      await this.#failed(running, error).catch((second: unknown) => this.#notReported(running, second));
    }
  }

  async #complete(running: Running, data: unknown): Promise<void> {
    if (running.ending === "lost" || running.ending === "cancelled") return;
    const { id, token } = running.context;
    const body = { token, data: data ?? null, usage: running.context.usage() };
    await this.#client.call("complete", { path: { task_id: id }, body, patienceMs: RESULT_PATIENCE_MS });
    this.#summary.completed += 1;
  }

  async #failed(running: Running, error: unknown): Promise<void> {
    const { id, token } = running.context;
    const path = { task_id: id };
    if (running.ending === "lost" || running.ending === "cancelled") return;
    if (error instanceof LeaseLost) return this.#notReported(running, error);
    if (error instanceof Release || running.ending === "stopped") {
      const reason = error instanceof Release ? error.message : "its worker was stopped";
      await this.#client.call("release", { path, body: { token, reason } });
      this.#summary.released += 1;
      return;
    }
    const known = error instanceof Fail ? error : new Fail(described(error), "crash");
    if (!(error instanceof Fail)) this.#log(`${id} (${running.context.type}) failed`, error);
    const body = { token, reason: known.reason, error: known.message, usage: running.context.usage(), ...known.options };
    await this.#client.call("fail", { path, body, patienceMs: RESULT_PATIENCE_MS });
    this.#summary.failed += 1;
  }

  #notReported(running: Running, error: unknown): void {
    if (error instanceof LeaseLost) {
      this.#summary[error.facts["status"] === "cancelled" ? "cancelled" : "lost"] += 1;
      return;
    }
    this.#log(`cannot report the end of ${running.context.id}; it waits until its lease expires`, error);
  }

  /** A claim can shorten the interval, so check it at least every second. */
  async #sendHeartbeats(signal: AbortSignal): Promise<void> {
    let last = Date.now();
    while (!signal.aborted) {
      await sleep(Math.min(this.#heartbeatSec, 1) * 1000, signal).catch(() => {});
      if (signal.aborted || Date.now() - last < this.#heartbeatSec * 1000) continue;
      last = Date.now();
      await this.#sendHeartbeat(signal).catch((error: unknown) => {
        if (!signal.aborted) this.#log("heartbeat failed", error);
      });
    }
  }

  /** One call for all claims of this worker; the answer lists those to cancel and those that are lost. */
  async #sendHeartbeat(signal: AbortSignal): Promise<void> {
    const holding = [...this.#running.keys()];
    const path = { runtime_id: this.runtimeId };
    const answer = await this.#client.call("runtimes_heartbeat", { path, body: { holding }, signal });
    await this.#client.call("agents_heartbeat", { path: { agent_id: this.#options.agentId }, signal });
    for (const [token, reason] of Object.entries(answer.cancel)) this.#end(token, "cancelled", reason ?? "cancelled");
    for (const token of answer.lost) this.#end(token, "lost", "the lease was lost");
    for (const [token, why] of Object.entries(answer.yields ?? {})) this.#running.get(token)?.context.askToYield(why);
  }

  #end(token: string, ending: "cancelled" | "lost", why: string): void {
    const running = this.#running.get(token);
    if (!running || running.ending) return;
    running.ending = ending;
    this.#summary[ending] += 1;
    running.abort.abort(new LeaseLost({ status: 409, code: "lease_lost", detail: why }));
  }

  #waitForAnyEnd(): Promise<unknown> {
    if (this.#running.size === 0) return Promise.resolve(); // the last one ended during the claim
    const stopped = new Promise((resolve) => {
      if (this.#stopping.signal.aborted) resolve(null);
      this.#stopping.signal.addEventListener("abort", resolve, { once: true });
    });
    return Promise.race([stopped, ...[...this.#running.values()].map((each) => each.done)]);
  }

  /** Let handlers end within the grace period, then abort the rest and release their tasks. */
  async #finish(): Promise<void> {
    const all = (): Promise<unknown> => Promise.all([...this.#running.values()].map((each) => each.done));
    await within(all(), this.#options.stopGraceMs ?? 30_000);
    for (const running of this.#running.values()) {
      running.ending ??= "stopped";
      running.abort.abort(new Error("the worker was stopped"));
    }
    await within(all(), 5_000);
    const tokens = [...this.#running.keys()];
    try {
      if (tokens.length) {
        await this.#client.call("batch_release", { body: { tokens, reason: "its worker has stopped" } });
        this.#summary.released += tokens.length;
      }
      await this.#client.call("agents_deregister", { path: { agent_id: this.#options.agentId } });
    } catch (error) {
      this.#log("cannot release the remaining tasks or deregister the agent", error);
    }
  }

  #log(line: string, error?: unknown): void {
    if (this.#options.log) this.#options.log(line, error);
    else console.error(`shiftwork: ${line}`, error ?? "");
  }
}

function described(error: unknown): string {
  return error instanceof Error ? (error.stack ?? String(error)) : String(error);
}

async function within(work: Promise<unknown>, ms: number): Promise<void> {
  const timer = new AbortController();
  await Promise.race([work, sleep(ms, timer.signal).catch(() => {})]);
  timer.abort();
}

interface Process {
  on(name: string, listener: () => void): void;
  off(name: string, listener: () => void): void;
}

/** Calls `stop` on SIGTERM and SIGINT if this runs in Node. Returns the function that undoes it. */
function onSignals(stop: () => void): () => void {
  const process = (globalThis as { process?: Partial<Process> }).process;
  if (!process?.on || !process.off) return () => {};
  const { on, off } = process as Process;
  for (const name of ["SIGTERM", "SIGINT"]) on.call(process, name, stop);
  return () => {
    for (const name of ["SIGTERM", "SIGINT"]) off.call(process, name, stop);
  };
}
