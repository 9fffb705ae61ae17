// All calls to the gateway. Keys stay in this tab (sessionStorage) and are sent only as Authorization.

import { say } from "./dom.js";

const ADMIN = "headway.admin-key";
const CLIENT = "headway.client-key";

/** What the gateway said no to: `status` (0: it does not answer), `code`, `message`. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const keys = {
  get admin() { return sessionStorage.getItem(ADMIN) ?? ""; },
  set admin(value) { put(ADMIN, value); },
  get client() { return sessionStorage.getItem(CLIENT) ?? ""; },
  set client(value) { put(CLIENT, value); },
  forget() { put(ADMIN, ""); put(CLIENT, ""); },
};
function put(name, value) {
  if (value) sessionStorage.setItem(name, value);
  else sessionStorage.removeItem(name);
  dispatchEvent(new Event("keys"));
}

/** What the gateway's clock shows, in s since the epoch: the browser's may be wrong. */
let ahead_ms = 0;
export const now_s = () => (Date.now() + ahead_ms) / 1000;

/** Whether the gateway answers, for the page's notice. */
function reachable(answers) {
  dispatchEvent(new CustomEvent("reachable", { detail: answers }));
}

async function ask(path, key, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(`../${path}`, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    // The browser refuses such a header: the key is wrong, not the gateway.
    if (key && /[^\x20-\x7e]/.test(key)) throw new ApiError(401, "invalid_api_key", "A key has only ASCII characters.");
    throw away(error);
  }
  const date = Date.parse(response.headers.get("date"));
  if (date) ahead_ms = date - Date.now();
  reachable(true);
  if (!response.ok) throw await refused(response);
  return response;
}

/** GET; `form` is the body's: "json" or "blob". */
async function read(form, path, key, signal) {
  const response = await ask(path, key, { signal });
  try {
    return await response[form]();
  } catch (error) {
    throw away(error); // the gateway stopped within its answer
  }
}

/** What to throw where the gateway does not answer, or not to the end. */
function away(error) {
  if (error.name === "AbortError") return error;
  reachable(false);
  return new ApiError(0, "unreachable", "The gateway does not answer.");
}

async function refused(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, error.code, error.message);
  } catch {
    return new ApiError(response.status, null, text.slice(0, 300) || response.statusText);
  }
}

/** GET under /admin, a file as a "blob". A 401 also fires the event `locked`. */
export async function admin(path, signal, form = "json") {
  try {
    return await read(form, `admin/${path}`, keys.admin, signal);
  } catch (error) {
    if (error.status === 401) dispatchEvent(new Event("locked"));
    throw error;
  }
}

export const about = () => read("json", "ui/about.json", "");

/** GET as a client. */
export const client = (path, signal) => read("json", path, keys.client, signal);

/** POST as a client; the response, whatever its body is. */
export function post(path, body, signal) {
  return ask(path, keys.client, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal });
}

/** The JSON of a stream's events, until `[DONE]`. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw away(error); });
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** Run `task`. If the gateway refuses it, `alert` says why. */
export async function tried(alert, task) {
  say(alert, "");
  try {
    await task();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    say(alert, error.message);
  }
}

/** Run `task` now and then every `every_ms` while the page is seen, until `signal` is aborted. The text of `alert` is why
 *  the gateway refused the last run. */
export async function poll(signal, every_ms, alert, task) {
  while (!signal.aborted) {
    if (document.hidden) await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true, signal }));
    if (signal.aborted) return;
    try {
      await task();
      say(alert, "");
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      if (!(error instanceof ApiError)) throw error;
      if (error.status) say(alert, error.message);
    }
    await new Promise((go) => setTimeout(go, every_ms));
  }
}
