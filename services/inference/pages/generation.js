// Requests for answers: streamed, and continued where they were after the service was away.
import { bodyOf } from "./answer.js";
import { events } from "./events.js";
import { ServiceError, explain, request, whenReady } from "./service.js";

// After these the same request may succeed; "failed", "request_timeout" and errors of the model are final.
const PASSING = new Set(["loading", "draining", "restarting", "engine_restarted", "queue_timeout", "memory_budget", "no_thread"]);

/**
 * Generate until all answers have ended. After a cut, each goes on from its last token, with its own seed: it becomes
 * what it would have been.
 * @param {import("./answer.js").Answer[]} answers that begin alike: the choices of one request
 * @param {{signal: AbortSignal, onEvent: () => void, onWait: (reason: string) => void}} options
 * @throws {Error} what cannot be waited for; a DOMException named AbortError where `signal` ended it
 */
export const generate = async (answers, options) => {
  // Choices that have their own seeds already continue each by itself.
  while (answers.length === 1 || answers[0].fingerprint === null) {
    try {
      return await stream(answers, options);
    } catch (error) {
      await waitAfter(error, options);
    }
  }
  await Promise.all(answers.filter((answer) => !answer.isFinished).map((answer) => generate([answer], options)));
};

const stream = async (answers, { signal, onEvent }) => {
  const fingerprint = answers[0].fingerprint;
  const scoring = answers[0].lacksDetails && { prompt_logprobs: 20 };
  const body = { ...bodyOf(answers), ...scoring, logprobs: 20, stream: true, stream_bytes: true };
  for (const answer of answers) answer.begin();
  const response = await request("generate", { json: body, signal });
  for await (const event of events(response)) {
    if (fingerprint && fingerprint !== event.fingerprint) {
      throw new ServiceError("the service has another tokenizer now, so this answer cannot go on", { code: "other_model" });
    }
    answers.forEach((answer, index) => answer.identify(event.choice_seeds[index], event.fingerprint));
    for (const choice of event.choices) answers[choice.index].add(choice);
    if (event.usage) for (const answer of answers) answer.usage = event.usage;
    onEvent();
  }
};

/** Return when the request may be sent again; throw the error where that would not help. */
const waitAfter = async (error, { signal, onWait }) => {
  if (!(error instanceof ServiceError)) throw error;
  const isPassing = error.code === "cut" || error.code === "no_connection" || PASSING.has(error.code);
  if (!isPassing && error.status !== 429) throw error;
  onWait(`${explain(error)} The answer goes on from where it is.`);
  await pause(1000 * (error.retryAfter ?? 0.2), signal);
  await whenReady((reason) => onWait(`${reason} The answer goes on as soon as the service is back.`), signal);
};

const pause = (milliseconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
