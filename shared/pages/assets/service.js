// Requests to the service that this page came from. The API key lives in this module's memory and nowhere else.
import { element, readable } from "./dom.js";

let key = "";
let asking = null;

/** What went wrong with a request. `status` 0: no response, or only a part of one. */
export class ServiceError extends Error {
  constructor(message, { status = 0, code = "no_connection", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ServiceError", status, code, retryAfter });
  }
}

/** Whether requests are sent with a key. @returns {boolean} */
export const usesKey = () => key !== "";

/**
 * Send a request; ask for the API key where it is missing or unknown, and send it again.
 * @param {string} path relative to the page, without a leading slash
 * @param {{json?: unknown, body?: BodyInit, headers?: Object<string, string>, signal?: AbortSignal}} options
 * @returns {Promise<Response>} a successful response
 * @throws {ServiceError} any other; a DOMException named AbortError where `signal` ended it
 */
export const request = async (path, options = {}) => {
  for (;;) {
    const sent = key;
    const response = await send(path, options);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401) throw error;
    if (sent === key && !(await askForKey(error))) throw error; // another request may have asked meanwhile
  }
};

const send = async (path, { json, body, headers = {}, signal }) => {
  const all = { ...headers };
  if (json !== undefined) all["Content-Type"] = "application/json";
  if (key) all.Authorization = `Bearer ${key}`;
  const content = json === undefined ? body : JSON.stringify(json);
  try {
    return await fetch(path, { method: content === undefined ? "GET" : "POST", body: content, headers: all, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("no connection to the service");
  }
};

const errorOf = async (response) => {
  const seconds = Number.parseInt(response.headers.get("Retry-After"), 10);
  const details = { status: response.status, code: "http_error", retryAfter: Number.isNaN(seconds) ? null : seconds };
  try {
    const { error } = await response.json();
    return new ServiceError(error.message, { ...details, code: error.code });
  } catch {
    return new ServiceError(`HTTP ${response.status}`, details);
  }
};

/** One sentence about an error. @param {Error} error @returns {string} */
export const explain = (error) => {
  if (!(error instanceof ServiceError)) return `The page failed: ${error.message}`;
  const again = error.retryAfter === null ? "try again" : `try again in ${error.retryAfter} s`;
  const reason = {
    0: error.code === "cut" ? "The answer was cut off: the service stopped or the connection broke."
      : "No connection to the service.",
    401: `The service needs an API key: ${error.message}.`,
    429: `The service is busy: ${again}.`,
    503: `The service is not ready (${error.message}): ${again}.`,
  }[error.status];
  return readable(reason ?? `${error.message[0]?.toUpperCase() ?? ""}${error.message.slice(1)} (${error.status}).`);
};

/** Wait until the service is ready; `onWait` gets a sentence each time it is not. */
export const whenReady = async (onWait, signal) => {
  for (;;) {
    signal?.throwIfAborted();
    try {
      const response = await send("readyz", { signal });
      if (response.ok) return;
      onWait(explain(await errorOf(response)));
    } catch (error) {
      if (!(error instanceof ServiceError)) throw error;
      onWait(explain(error));
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
};

const askForKey = (error) => (asking ??= showKeyDialog(error).finally(() => (asking = null)));

const showKeyDialog = (error) => new Promise((resolve) => {
  const input = element("input", { id: "api-key", type: "password", autocomplete: "off", required: true,
    pattern: "\\s*[!-~]+\\s*", title: "ASCII without spaces" }); // else no header can have it
  const submit = (event) => {
    event.preventDefault();
    key = input.value.trim();
    dialog.close("sent");
  };
  const dialog = element("dialog", { "aria-labelledby": "key-title" },
    element("form", { submit },
      element("h2", { id: "key-title" }, "API key"),
      element("p", {}, error.code === "missing_api_key" ? "This service needs an API key."
        : "The service does not know this key."),
      element("label", { for: "api-key" }, "Key"), input,
      element("p", { class: "soft" }, "It stays in this page's memory: a reload forgets it."),
      element("div", { class: "row" }, element("button", { type: "submit", class: "primary" }, "Use this key"),
        element("button", { type: "button", click: () => dialog.close() }, "Cancel"))));
  dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "sent");
  });
  document.body.append(dialog);
  dialog.showModal();
});
