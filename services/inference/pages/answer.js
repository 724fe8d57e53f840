// One answer: its tokens, and the request that continues it from where it is.

/** Of each token that was seen; alternatives are kept as ids, since thousands of tokens have twenty each. */
const bytesById = new Map();

/** @param {number} id @returns {number[]} the bytes of a token that an answer or its alternatives had */
export const bytesOf = (id) => bytesById.get(id) ?? [];

/**
 * @typedef {{id: number, logprob: number|null, alternatives: {id: number, logprob: number}[], note?: string}} Token
 *   `logprob` is null while it is not known, as of tokens that a link gave, or for the reason in `note`
 */

const tokenOf = ({ id, bytes, logprob, top_logprobs: top }) => {
  bytesById.set(id, bytes);
  for (const other of top) if (!bytesById.has(other.id)) bytesById.set(other.id, other.bytes);
  return { id, logprob, alternatives: top.map((other) => ({ id: other.id, logprob: other.logprob })) };
};

/** A token that no model predicted, and why. @returns {Token} */
export const given = (id, bytes, note) => {
  bytesById.set(id, bytes);
  return { id, logprob: null, alternatives: [], note };
};

/**
 * The tokens of a prompt, as those of an answer. No prediction has the first; its bytes are those not of the others.
 * @param {string} prompt @param {any} choice with `prompt_logprobs`
 */
export const scoredPrompt = (prompt, { prompt_token_ids: [id], prompt_logprobs: [, ...others] }) => {
  const bytes = [...new TextEncoder().encode(prompt)];
  const first = bytes.slice(0, bytes.length - others.flatMap((other) => other.bytes).length);
  const note = "none: no token before it";
  const tokens = [given(id, first, note), ...others.map(tokenOf)];
  return Object.assign(new Answer({ prompt }, { given: tokens, title: "Prompt" }), { state: "prompt" });
};

/** `state`: "waiting", "running", "stopped", "failed", its finish reason, or "prompt" of a prompt. */
export class Answer {
  #usage = null;

  /**
   * @param {object} request `prompt` and parameters, without `seed`, `n` and `max_tokens`
   * @param {{seed?: number, maxTokens?: number, given?: Token[], title?: string}} options `given`: its first tokens
   */
  constructor(request, { seed, maxTokens, given = [], title }) {
    Object.assign(this, { request, seed, maxTokens, tokens: [...given], numGiven: given.length, title });
    this.state = "waiting";
    this.stopReason = null;
    this.fingerprint = null;
    this.isChanged = true;
    this.begin();
  }

  /** What the latest request took, as the API counts it; the stream sends it last. */
  get usage() {
    return this.#usage;
  }

  set usage(usage) {
    this.#usage = usage;
    this.isChanged = true;
  }

  begin() {
    this.numBefore = this.tokens.length;
    this.startedAt = performance.now();
    this.firstAt = this.lastAt = null;
  }

  get ids() {
    return this.tokens.map((token) => token.id);
  }

  get isFinished() {
    return this.state === "stop" || this.state === "length";
  }

  get canContinue() {
    return ["stopped", "failed", "length"].includes(this.state);
  }

  /** Take what an event of the stream adds. @param {object} choice */
  add(choice) {
    this.state = "running";
    if (choice.prompt_logprobs) {
      const scored = choice.prompt_logprobs.slice(-this.numBefore);
      scored.forEach((entry, index) => (this.tokens[index] = tokenOf(entry)));
      this.isRedrawn = true;
    }
    for (const entry of choice.logprobs ?? []) this.tokens.push(tokenOf(entry));
    if (choice.logprobs?.length) {
      this.lastAt = performance.now();
      this.firstAt ??= this.lastAt;
    }
    if (choice.finish_reason) {
      this.state = choice.finish_reason;
      this.stopReason = choice.stop_reason;
    }
    this.isChanged = true;
  }

  /** Milliseconds to the first token, and tokens per second after it, of the latest request; null before that. */
  get speed() {
    const count = this.tokens.length - this.numBefore;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    const first = this.firstAt && this.firstAt - this.startedAt;
    return { first, rate: count > 1 && seconds > 0 ? (count - 1) / seconds : null };
  }

  /** What a link needs to make it again. */
  get link() {
    const isCut = this.state === "stopped" || this.state === "failed";
    const maxTokens = isCut ? this.tokens.length : this.maxTokens;
    const given = this.ids.slice(0, this.numGiven);
    return { seed: this.seed, ...(maxTokens && { max_tokens: maxTokens }), ...(given.length && { given }) };
  }
}

/** The parameters of what was cut after some tokens, which may be fewer than were asked for. */
export const cutAfter = (parameters, count) =>
  ({ ...parameters, max_tokens: count, ...(parameters.min_tokens > count && { min_tokens: count }) });

/** The body of the request for answers that begin alike, as its choices. @param {Answer[]} answers */
export const bodyOf = ([answer, ...others]) => ({
  ...(answer.maxTokens === undefined ? answer.request : cutAfter(answer.request, answer.maxTokens)),
  ...(answer.seed !== undefined && { seed: answer.seed }),
  ...(others.length && { n: others.length + 1 }),
  ...(answer.tokens.length && { continue_tokens: answer.ids }),
});
