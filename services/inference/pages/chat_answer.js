// A message of the assistant: parts that were generated, each by a request of its own, and texts that were written.
import { Answer, bytesOf, cutAfter, given } from "./answer.js";
import { events } from "./events.js";
import { request } from "./service.js";
import { waitAfter } from "./waiting.js";

const WRITTEN = "none: it was written, not generated";
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * @typedef {{text: string, count: number, body?: object, end?: string}} Part `count`: its tokens; `body`: the request
 *   that generated it
 */

export class ChatAnswer extends Answer {
  /** @param {Object<string, number>} specialTokens their ids by name */
  constructor(specialTokens) {
    super({}, {});
    Object.assign(this, { specialTokens, parts: [], state: "stopped" });
  }

  get text() {
    return this.parts.map((part) => part.text).join("");
  }

  /** The request of the latest part that was generated. */
  get body() {
    return this.parts.findLast((part) => part.body)?.body;
  }

  /** Add a text that was written, or that is a token which a person chose. @param {string} text */
  write(text, token = given(`text ${text}`, [...new TextEncoder().encode(text)], WRITTEN)) {
    if (!text) return;
    this.parts.push({ text, count: 1 });
    this.tokens.push(token);
    this.isChanged = true;
  }

  /** Remove everything from a token on. @param {number} index */
  cut(index) {
    let before = 0;
    this.parts = this.parts.flatMap((part) => {
      const count = Math.min(part.count, index - before);
      const start = before;
      before += part.count;
      if (count <= 0) return [];
      if (count === part.count) return [part];
      const text = this.textOf(this.tokens.slice(start, index));
      return [{ text, count, body: part.body && cutAfter(part.body, count) }];
    });
    this.tokens.length = index;
    this.isChanged = this.isRedrawn = true;
  }

  /** The text of tokens, without special ones. @throws {TypeError} it ends within a character */
  textOf(tokens) {
    const ids = tokens.map((token) => token.id).filter((id) => typeof id !== "number");
    return strict.decode(Uint8Array.from(ids.flatMap(bytesOf)));
  }

  /**
   * Generate a part until it ends, is stopped or fails. After a cut of the stream it is generated again: its seed makes
   * the same tokens.
   * @param {object[]} before the messages before this one
   * @param {object} parameters with a seed
   * @param {{signal: AbortSignal, onEvent: () => void, onWait: (reason: string) => void}} options
   * @throws {Error} what cannot be waited for; AbortError where `signal` ended it
   */
  async generate(before, parameters, options) {
    const start = this.tokens.length;
    const { text } = this;
    const messages = text ? [...before, { role: "assistant", content: text }] : before;
    const part = { text: "", count: 0,
      body: { messages, ...(text && { continue_final_message: true }), ...parameters } };
    this.parts.push(part);
    for (;;) {
      Object.assign(this, { state: "waiting", stopReason: null, isChanged: true });
      this.begin();
      try {
        return await this.#stream(part, options);
      } catch (error) {
        if (this.isFinished) return;
        await waitAfter(error, options);
        Object.assign(part, { text: "", count: 0 });
        this.tokens.length = start;
        this.isRedrawn = true;
      }
    }
  }

  /** Note that the latest part ended before its time. @param {string} state "stopped" or "failed" */
  end(state) {
    Object.assign(this, { state, isChanged: true });
    const part = this.parts.at(-1);
    if (part.count) part.body = cutAfter(part.body, part.count);
    else this.parts.pop();
  }

  async #stream(part, { signal, onEvent }) {
    const body = { ...part.body, logprobs: true, top_logprobs: 20, stream: true, stream_options: { include_usage: true } };
    const response = await request("v1/chat/completions", { json: body, signal });
    for await (const { choices: [choice], usage } of events(response)) {
      if (usage) this.usage = usage;
      if (choice) this.#take(part, choice);
      onEvent();
    }
  }

  #take(part, { delta, logprobs, finish_reason: finish, stop_reason: stop }) {
    const entries = (logprobs?.content ?? []).map((entry) => this.#named(entry));
    part.text += delta.content ?? "";
    part.count += entries.length;
    this.add({ logprobs: entries, finish_reason: finish, stop_reason: stop });
  }

  /** OpenAI's tokens have no ids: a special one gets its own, any other is its bytes. */
  #named({ top_logprobs: top, ...entry }) {
    const named = (token) => ({ ...token, id: this.specialTokens[token.token] ?? token.bytes.join(" ") });
    return { ...named(entry), top_logprobs: top.map(named) };
  }
}
