// Another tokenizer beside the served one: its file is read, and text is encoded, by a worker of this page alone.

/** A tokenizer.json in a worker. */
export class OtherTokenizer {
  number = 0; // of the latest call of `encode`
  worker = null;

  /**
   * Read a file; the one before is closed.
   * @param {File} file
   * @returns {Promise<{tokens: number, merges: number, special: number}>}
   * @throws {Error} why it cannot be read
   */
  open(file) {
    this.close();
    this.worker = new Worker("assets/bpe-worker.js", { type: "module" });
    return this.#ask({ file });
  }

  /** End the worker, whatever it does. */
  close() {
    this.worker?.terminate();
    this.worker = null;
    this.reject?.(new DOMException("closed", "AbortError"));
    this.reject = null;
  }

  /**
   * Encode a text. A call that waits while another is at work is dropped for a later one.
   * @returns {Promise<import("./pieces.js").Columns|null>} null where it was dropped
   */
  async encode(text, options) {
    const turn = ++this.number;
    await this.last?.catch(() => {});
    if (turn !== this.number || !this.worker) return null;
    return this.#ask({ text, ...options });
  }

  #ask(message) {
    const { worker } = this;
    this.last = new Promise((resolve, reject) => {
      this.reject = reject;
      worker.onmessage = ({ data: { answer, error } }) => (answer ? resolve(answer) : reject(new Error(error)));
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message || "its worker did not start"));
      };
      worker.postMessage(message);
    });
    return this.last;
  }
}
