// What happens after a request failed: some faults pass.
import { ServiceError, explain, whenReady } from "./service.js";

// After these the same request may succeed; "failed", "request_timeout" and errors of the model are final.
const PASSING = ("cut no_connection client_timeout loading draining restarting engine_restarted engine_unavailable " +
  "queue_full queue_timeout memory_budget no_thread no_replica replica_lost").split(" ");

/** Return when the request may be sent again; throw the error where that would not help. */
export const waitAfter = async (error, { signal, onWait }) => {
  if (!(error instanceof ServiceError)) throw error;
  if (!PASSING.includes(error.code)) throw error;
  onWait(`${explain(error)} The answer will continue from where it is.`);
  await pause(1000 * (error.retryAfter ?? 0.2), signal);
  await whenReady((reason) => onWait(`${reason} The answer will continue when the service is back.`), signal);
};

const pause = (milliseconds, signal) =>
  new Promise((resolve, reject) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
