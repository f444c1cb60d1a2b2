export { Client } from "./client.js";
export type {
  Answer,
  CallOptions,
  ClientOptions,
  NewTask,
  OperationName,
  Request,
  Result,
  Schemas,
  Submitted,
  Task,
  Usage,
} from "./client.js";
export { Context, Fail, Release } from "./context.js";
export {
  LeaseLost,
  NotFound,
  type Problem,
  ResultTimeout,
  ServerUnavailable,
  ShiftworkError,
  TaskCancelled,
  TaskFailed,
} from "./errors.js";
export { type Handler, type RunOptions, type Summary, Worker, type WorkerOptions } from "./worker.js";
