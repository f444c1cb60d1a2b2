/** Errors of the server, each with a stable code, and errors of this client. */

/** The body of an error response: RFC 9457 with Shiftwork's code, hint and facts. */
export interface Problem {
  status: number;
  code: string;
  detail: string;
  hint?: string;
  where?: string | null;
  request_id?: string | null;
  facts?: Record<string, unknown>;
}

/** Base of all errors. `code` never changes its meaning once released; docs/reference/errors.md lists the codes. */
export class ShiftworkError extends Error {
  readonly code: string;
  /** The HTTP status, 0 if there was no answer. */
  readonly status: number;
  readonly hint: string;
  readonly where: string | null;
  readonly requestId: string | null;
  readonly facts: Record<string, unknown>;

  constructor(problem: Problem, options?: ErrorOptions) {
    super(problem.detail, options);
    this.name = new.target.name;
    this.code = problem.code;
    this.status = problem.status;
    this.hint = problem.hint ?? "";
    this.where = problem.where ?? null;
    this.requestId = problem.request_id ?? null;
    this.facts = problem.facts ?? {};
  }
}

/** The claim is no longer valid: another agent may have the task. Nothing was changed. */
export class LeaseLost extends ShiftworkError {}

/** It does not exist, or the caller may not see it. */
export class NotFound extends ShiftworkError {}

/** The task whose result was requested has failed for good; `facts` say why. */
export class TaskFailed extends ShiftworkError {}

/** The task whose result was requested was cancelled. */
export class TaskCancelled extends ShiftworkError {}

/** The task did not end within the timeout. It continues. */
export class ResultTimeout extends ShiftworkError {}

/** The server could not be reached, or its answer was not one of the API. */
export class ServerUnavailable extends ShiftworkError {
  constructor(detail: string, status = 0, options?: ErrorOptions) {
    super({ status, code: "store_unavailable", detail, hint: "Check the address and that the server runs." }, options);
  }
}

const CLASSES: Record<string, new (problem: Problem) => ShiftworkError> = {
  lease_lost: LeaseLost,
  not_found: NotFound,
  task_failed: TaskFailed,
  task_cancelled: TaskCancelled,
  result_timeout: ResultTimeout,
};

/** The error that a response of the server describes. */
export function errorOf(status: number, body: unknown): ShiftworkError {
  const problem = body as Partial<Problem> | null;
  if (typeof problem !== "object" || problem === null || typeof problem.code !== "string") {
    return new ServerUnavailable(`the server answered ${status} without a problem description`, status);
  }
  const known = { detail: problem.code, ...problem, status } as Problem;
  const Class = CLASSES[known.code] ?? ShiftworkError;
  return new Class(known);
}
