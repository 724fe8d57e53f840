// Requests of which only the last one counts.
import { explain, whenReady } from "./service.js";

const PASSING = [0, 429, 503]; // no connection, too many requests, not ready

/**
 * A function that runs a task, and ends the one that it started before. A task that fails because the service is away
 * is run again when it is back.
 * @param {(signal: AbortSignal) => Promise<void>} task
 * @param {(sentence: string) => void} report gets what went wrong, and "" when it has ended
 * @returns {() => Promise<void>}
 */
export const latest = (task, report) => {
  let controller = new AbortController();
  return async () => {
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    for (;;) {
      try {
        await task(signal);
        return signal.aborted || report("");
      } catch (error) {
        if (signal.aborted) return;
        report(explain(error));
        if (!PASSING.includes(error.status)) return;
        await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter ?? 0.2)));
      }
      try {
        await whenReady(report, signal);
      } catch {
        return; // a later call ended this one
      }
    }
  };
};
