// Requests for answers: streamed, and continued where they were after the service was away.
import { bodyOf } from "./answer.js";
import { events } from "./events.js";
import { ServiceError, request } from "./service.js";
import { waitAfter } from "./waiting.js";

/**
 * Generate until all answers have ended. After a cut, each continues with its own seed, as if it had not been cut.
 * @param {import("./answer.js").Answer[]} answers that begin alike: the choices of one request
 * @param {{signal: AbortSignal, onEvent: () => void, onWait: (reason: string) => void}} options
 * @throws {Error} what cannot be waited for; AbortError where `signal` ended it
 */
export const generate = async (answers, options) => {
  try {
    await stream(answers, options);
  } catch (error) {
    await waitAfter(error, options);
    const unfinished = answers.filter((answer) => !answer.isFinished);
    const groups = answers[0].fingerprint ? unfinished.map((answer) => [answer]) : [answers];
    await Promise.all(groups.map((group) => generate(group, options)));
  }
};

const stream = async (answers, { signal, onEvent }) => {
  const fingerprint = answers[0].fingerprint;
  const scoring = answers[0].tokens.some(({ logprob }) => logprob === null) && { prompt_logprobs: 20 };
  const body = { ...bodyOf(answers), ...scoring, logprobs: 20, stream: true, stream_bytes: true };
  for (const answer of answers) answer.begin();
  const response = await request("generate", { json: body, signal });
  for await (const event of events(response)) {
    if (fingerprint && fingerprint !== event.fingerprint) {
      throw new ServiceError("the service has another tokenizer now", { status: 409, code: "other_tokenizer" });
    }
    const { choice_seeds: seeds, fingerprint: tokenizer } = event;
    answers.forEach((answer, index) => Object.assign(answer, { seed: seeds[index], fingerprint: tokenizer }));
    for (const choice of event.choices) answers[choice.index].add(choice);
    if (event.usage) for (const answer of answers) answer.usage = event.usage;
    onEvent();
  }
};
