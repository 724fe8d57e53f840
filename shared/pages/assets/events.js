// Server-sent events of a response, as the services send them: `data:` frames of JSON, then `data: [DONE]`.
import { ServiceError } from "./service.js";

/**
 * The JSON of each event.
 * @param {Response} response
 * @yields {any}
 * @throws {ServiceError} an error frame; code "cut" where the stream ended without [DONE]
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(rethrow);
      if (done) throw new ServiceError("the stream ended early", { code: "cut" });
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        if (!frame.startsWith("data: ")) continue; // a comment keeps the connection open
        if (frame === "data: [DONE]") return;
        const content = JSON.parse(frame.slice(6));
        if (content.error) throw new ServiceError(content.error.message, { status: 503, code: content.error.code });
        yield content;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const rethrow = (error) => {
  if (error.name === "AbortError") throw error;
  throw new ServiceError("the stream was cut", { code: "cut" });
};
