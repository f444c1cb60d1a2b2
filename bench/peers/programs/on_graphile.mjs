// graphile-worker on PostgreSQL. Fast: as in its own performance test, without the delay before a refetch.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { batches, main, mark, paced, priority, timed } from "./common.mjs";

const logger = new Logger(() => () => {});
const utils = (url) => makeWorkerUtils({ connectionString: url, logger });
const SETTINGS = {
  default: {},
  fast: {
    concurrentJobs: 24,
    maxPoolSize: 26,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};
const hang = () => {
  mark();
  return new Promise((resolve) => setTimeout(resolve, 600_000));
};

await main({
  prepare: async (url) => (await utils(url)).migrate(),
  single: async (url, count) => {
    const queue = await utils(url);
    await timed(async () => {
      for (let n = 0; n < count; n++) await queue.addJob("noop", { n });
    });
  },
  bulk: async (url, count, mixed) => {
    const queue = await utils(url);
    const job = (n) => ({ identifier: "noop", payload: { n }, ...(mixed && { priority: priority(n) }) });
    await timed(async () => {
      for (const batch of batches(count)) await queue.addJobs(batch.map(job));
    });
  },
  send: async (url, count) => {
    const queue = await utils(url);
    await paced(count, (sent) => queue.addJob("stamp", { sent }));
  },
  hang: async (url) => (await utils(url)).addJob("hang"),
  work: (url, settings) =>
    run({
      logger,
      preset: { worker: { connectionString: url, ...SETTINGS[settings] } },
      parsedCronItems: [],
      taskList: { noop: async () => void mark(), stamp: async ({ sent }) => void mark(sent), hang },
    }),
});
