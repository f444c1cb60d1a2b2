/** Every operation of a Shiftwork server, typed from its OpenAPI document, over `fetch`. */

import { errorOf, ResultTimeout, ServerUnavailable } from "./errors.js";
import type { components, operations } from "./generated/openapi.js";
import { ROUTES } from "./generated/routes.js";

export type Schemas = components["schemas"];
export type NewTask = Schemas["NewTask"];
export type Submitted = Schemas["Submitted"];
export type Task = Schemas["Task"];
export type Result = Schemas["Result"];
export type Usage = Schemas["Usage"];
export type OperationName = keyof operations & keyof typeof ROUTES;

type Json<T> = T extends { content: { "application/json": infer Body } } ? Body : never;
type Success<T> = { [Status in keyof T & (200 | 201 | 202)]: Json<T[Status]> }[keyof T & (200 | 201 | 202)];
type Query<Op> = Op extends { parameters: { query?: infer Given } } ? NonNullable<Given> : never;
type PathOf<Op> = Op extends { parameters: { path: infer Given } } ? { path: Given } : unknown;
type BodyOf<Op> = Op extends { requestBody: infer Body }
  ? { body: Json<Body> }
  : Op extends { requestBody?: infer Body }
    ? { body?: Json<NonNullable<Body>> }
    : unknown;

/** The arguments of an operation. */
export type Request<K extends OperationName> = CallOptions & { query?: Query<operations[K]> } & PathOf<operations[K]> &
  BodyOf<operations[K]>;
/** The answer of an operation. */
export type Answer<K extends OperationName> = Success<operations[K]["responses"]>;

export interface CallOptions {
  signal?: AbortSignal | undefined;
  /** Calls with the same key take effect once. The default is a new key for each call. */
  idempotencyKey?: string;
  /** How long to retry while the server is unavailable; default: the client's `patienceMs`. */
  patienceMs?: number;
}

export interface ClientOptions {
  /** `http://host:port` of the server. */
  url: string;
  /** A token, if the server requires one. */
  token?: string;
  workspace?: string;
  /** Recorded in the events of each call. */
  actor?: string;
  /** How long to retry a call while the server is unavailable; default 10 s. */
  patienceMs?: number;
  fetch?: typeof fetch;
}

/** A request without its types. */
interface Sent extends CallOptions {
  path?: Record<string, unknown>;
  query?: Record<string, unknown>;
  body?: unknown;
}

const RETRIED_STATUSES = new Set([429, 502, 503, 504]);
const RETRY_MS = 200;
const MAX_RETRY_MS = 2_000;
/** The longest that a server waits for a result; then the client asks again. */
const MAX_WAIT_SEC = 25;

export class Client {
  readonly url: string;
  readonly #options: ClientOptions;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions | string) {
    this.#options = typeof options === "string" ? { url: options } : options;
    const parsed = new URL(this.#options.url);
    if (!/^https?:$/.test(parsed.protocol) || parsed.username || parsed.password) {
      throw new TypeError("expected the address of a server, http://host:port, without a user and a password");
    }
    this.url = parsed.href.replace(/\/+$/, "");
    this.#fetch = this.#options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** Call any operation by its `operationId`: `client.call("dags_get", { path: { dag_id } })`. */
  call<K extends OperationName>(name: K, request: Request<K>): Promise<Answer<K>>;
  async call(name: OperationName, given: CallOptions): Promise<unknown> {
    const request: Sent = given;
    const [method, template] = ROUTES[name];
    const address = this.#address(template, request.path, request.query);
    const sent: RequestInit = { method, headers: this.#headers(method, request) };
    if (request.body !== undefined) sent.body = JSON.stringify(request.body);
    const patience = request.patienceMs ?? this.#options.patienceMs ?? 10_000;
    return this.#withRetries(address, sent, patience, request.signal);
  }

  #address(template: string, path: Record<string, unknown> = {}, query: Record<string, unknown> = {}): string {
    const named = template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(path[name])));
    const address = new URL(this.url + named);
    for (const [name, value] of Object.entries({ workspace: this.#options.workspace, view: "native", ...query })) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== undefined && each !== null) address.searchParams.append(name, String(each));
      }
    }
    return address.href;
  }

  #headers(method: string, request: Sent): Record<string, string> {
    const headers: Record<string, string> = { accept: "application/json" };
    if (request.body !== undefined) headers["content-type"] = "application/json";
    if (this.#options.token) headers["authorization"] = `Bearer ${this.#options.token}`;
    if (this.#options.actor) headers["x-actor"] = this.#options.actor;
    if (method !== "GET") headers["idempotency-key"] = request.idempotencyKey ?? crypto.randomUUID();
    return headers;
  }

  /** Retry while the server is unavailable. The idempotency key lets the call take effect only once. */
  async #withRetries(address: string, sent: RequestInit, patienceMs: number, signal?: AbortSignal): Promise<unknown> {
    const deadline = Date.now() + patienceMs;
    for (let delay = RETRY_MS; ; delay = Math.min(delay * 2, MAX_RETRY_MS)) {
      let failure: Error;
      try {
        const answer = await this.#fetch(address, signal ? { ...sent, signal } : sent);
        const text = await answer.text();
        if (answer.ok) return text ? JSON.parse(text) : null;
        failure = errorOf(answer.status, parsed(text));
        if (!RETRIED_STATUSES.has(answer.status)) throw new Refused(failure);
        const asked = Number(answer.headers.get("retry-after"));
        if (asked > 0) delay = asked * 1000;
      } catch (error) {
        if (error instanceof Refused) throw error.cause;
        if (signal?.aborted) throw signal.reason;
        failure = new ServerUnavailable(`${this.url} cannot be reached: ${String(error)}`, 0, { cause: error });
      }
      if (Date.now() + delay > deadline) throw failure;
      await sleep(delay, signal);
    }
  }

  /** Submit one task. */
  async submit(task: NewTask, options: CallOptions = {}): Promise<Submitted> {
    return (await this.call("submit", { ...options, body: task })) as Submitted;
  }

  /** Submit a batch, all or nothing. Tasks may depend on each other by their `key`. */
  async submitMany(tasks: NewTask[], options: CallOptions = {}): Promise<Submitted[]> {
    return (await this.call("submit", { ...options, body: tasks })) as Submitted[];
  }

  get(taskId: string, options: CallOptions = {}): Promise<Task> {
    return this.call("get", { ...options, path: { task_id: taskId } });
  }

  cancel(taskId: string, reason = "cancelled", options: CallOptions = {}): Promise<Schemas["Outcome"]> {
    return this.call("cancel", { ...options, path: { task_id: taskId }, body: { reason } });
  }

  /** Send an instruction to the agent that holds a task, or claims it next. The next heartbeat delivers it. */
  tell(taskId: string, text: string, options: CallOptions = {}): Promise<Schemas["Instruction"]> {
    return this.call("tell", { ...options, path: { task_id: taskId }, body: { text } });
  }

  /** The instructions sent to the agents of a task, in order, and whether each was delivered and acknowledged. */
  async instructions(taskId: string, options: CallOptions = {}): Promise<Schemas["Instruction"][]> {
    return (await this.call("tasks_instructions", { ...options, path: { task_id: taskId } })).instructions;
  }

  /** Why a task is not running, and what would change that. */
  explain(taskId: string, options: CallOptions = {}): Promise<Schemas["Explanation"]> {
    return this.call("explain", { ...options, path: { task_id: taskId } });
  }

  /**
   * Wait for the result of a task. Throws `TaskFailed`, `TaskCancelled`, `NotFound`, and `ResultTimeout` after
   * `timeoutSec` (without it, waits as long as it takes). Uses long polling.
   */
  async result(taskId: string, options: CallOptions & { timeoutSec?: number } = {}): Promise<Result> {
    const { timeoutSec = Number.POSITIVE_INFINITY, ...call } = options;
    const deadline = Date.now() + timeoutSec * 1000;
    for (;;) {
      const asked = Date.now();
      const wait = Math.min(Math.max(0, (deadline - asked) / 1000), MAX_WAIT_SEC);
      try {
        return await this.call("result", { ...call, path: { task_id: taskId }, query: { wait_sec: wait } });
      } catch (error) {
        if (!(error instanceof ResultTimeout) || Date.now() >= deadline) throw error;
        if (Date.now() - asked < wait * 500) await sleep(50, call.signal); // a server about to stop does not wait
      }
    }
  }
}

/** Carries a refusal out of the retry loop. */
class Refused extends Error {
  constructor(cause: Error) {
    super(cause.message, { cause });
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Sleep. If the signal aborts, throw its reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
