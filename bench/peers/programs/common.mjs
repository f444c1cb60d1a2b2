// Shared by the Node.js programs of the queues; the verbs are those of common.py.
import fs from "node:fs";

const EVERY_MS = 50;
const marks = fs.openSync(process.env.PEER_MARKS ?? "/dev/null", "a");
const now = () => performance.timeOrigin + performance.now();

export const mark = (sent) => fs.writeSync(marks, sent === undefined ? "." : `${Math.round((now() - sent) * 1e6)}\n`);
export const priority = (number) => Math.floor(number / 100) % 100;

export function* batches(count, size = 1000) {
  for (let first = 0; first < count; first += size)
    yield Array.from({ length: Math.min(size, count - first) }, (_, offset) => first + offset);
}

export async function timed(submit) {
  const began = performance.now();
  await submit();
  console.log((performance.now() - began) / 1000);
}

export async function paced(count, send) {
  for (let number = 0; number < count; number++) {
    const began = performance.now();
    await send(now());
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, EVERY_MS - (performance.now() - began))));
  }
}

export async function main(verbs) {
  const [verb, url, ...words] = process.argv.slice(2);
  await verbs[verb](url, ...words.map((word) => (/^\d+$/.test(word) ? Number(word) : word)));
  if (verb !== "work") process.exit(0);
}
