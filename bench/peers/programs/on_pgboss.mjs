// pg-boss on PostgreSQL.
import { PgBoss } from "pg-boss";
import { batches, main, mark, paced, priority, timed } from "./common.mjs";

const SETTINGS = {
  default: {},
  fast: { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
};
const open = async (url, options) => {
  const boss = new PgBoss({ connectionString: url, schedule: false, ...options });
  boss.on("error", console.error);
  await boss.start();
  return boss;
};
const client = (url) => open(url, { supervise: false, migrate: false });
const hang = () => new Promise((resolve) => setTimeout(resolve, 600_000));

await main({
  prepare: async (url) => {
    const boss = await open(url, { supervise: false });
    for (const name of ["noop", "stamp", "hang"]) await boss.createQueue(name, { notify: true });
  },
  single: async (url, count) => {
    const boss = await client(url);
    await timed(async () => {
      for (let n = 0; n < count; n++) await boss.send("noop", { n });
    });
  },
  bulk: async (url, count, mixed) => {
    const boss = await client(url);
    const job = (n) => ({ data: { n }, ...(mixed && { priority: priority(n) }) });
    await timed(async () => {
      for (const batch of batches(count)) await boss.insert("noop", batch.map(job));
    });
  },
  send: async (url, count) => {
    const boss = await client(url);
    await paced(count, (sent) => boss.send("stamp", { sent }));
  },
  hang: async (url) => (await client(url)).send("hang", {}),
  work: async (url, settings) => {
    const boss = await open(url, { useListenNotify: settings === "fast" });
    await boss.work("noop", SETTINGS[settings], async (jobs) => jobs.forEach(() => mark()));
    await boss.work("stamp", SETTINGS[settings], async (jobs) => jobs.forEach(({ data }) => mark(data.sent)));
    await boss.work("hang", SETTINGS[settings], async () => (mark(), hang()));
  },
});
