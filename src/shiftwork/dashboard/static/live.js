// The event stream of the server: read with fetch, since an EventSource cannot send a token.

import { address, headers } from "./api.js";

// The server sends something every 15 s. Silence means that the stream is dead, since a lost network closes nothing.
const SILENT_MS = 45000;

const listeners = new Set();
const watchers = new Set();
let state = "connecting";
let cursor = null;
let stopped = null;

export function onEvents(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function onState(watcher) {
  watchers.add(watcher);
  watcher(state);
  return () => watchers.delete(watcher);
}

function setState(next) {
  if (next === state) return;
  state = next;
  for (const watcher of watchers) watcher(state);
}

export function start() {
  stopped?.abort();
  stopped = new AbortController();
  cursor = null;
  run(stopped.signal);
}

export function stop() {
  stopped?.abort();
}

async function run(signal) {
  let pause = 500;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const end = () => attempt.abort();
    signal.addEventListener("abort", end);
    try {
      const answer = await inTime(
        fetch(address("/api/events", { after: cursor ?? "now" }), {
          headers: headers({ Accept: "text/event-stream" }),
          signal: attempt.signal,
        }),
      );
      if (!answer.ok) throw new Error(String(answer.status));
      setState("live");
      pause = 500;
      await read(answer.body);
    } catch {
      if (signal.aborted) return;
    } finally {
      signal.removeEventListener("abort", end);
      attempt.abort();
    }
    setState("away");
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(10000, pause * 2);
  }
}

async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await inTime(reader.read());
    if (done) return;
    const messages = (rest + value).split(/\r?\n\r?\n/);
    rest = messages.pop();
    const events = messages.map(parse).filter(Boolean);
    if (events.length) for (const listener of listeners) listener(events);
  }
}

function inTime(promise) {
  let timer;
  const silence = new Promise((_, refuse) => {
    timer = setTimeout(() => refuse(new Error("silence")), SILENT_MS);
  });
  return Promise.race([promise, silence]).finally(() => clearTimeout(timer));
}

function parse(message) {
  const data = [];
  for (const line of message.split(/\r?\n/)) {
    if (line.startsWith("id:")) cursor = line.slice(3).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  try {
    return data.length ? JSON.parse(data.join("\n")) : null;
  } catch {
    return null;
  }
}
