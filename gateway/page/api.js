// The gateway's HTTP door. Knows bodies, chunks and errors; no page.

import { eventsOf } from "./sse.js";

// What went wrong, in words. `needsKey` says that an API key would help.
export class Problem extends Error {
  constructor(message, { needsKey = false } = {}) {
    super(message);
    this.needsKey = needsKey;
  }
}

// The models that are served; an empty list when no verifier is ready.
export async function models(key) {
  const response = await call("/v1/models", { headers: headers(key) });
  return (await response.json()).data;
}

// Yields the first choice of each chunk of a streamed chat completion, then returns.
// Raises Problem; an abort of `signal` raises AbortError.
export async function* chat(body, key, signal) {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  let isWhole = false;
  try {
    for await (const { event, data } of eventsOf(response.body)) {
      if (data === "[DONE]") {
        isWhole = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (event === "error") throw new Problem(`The answer broke off: ${chunk.error.message}.`);
      if (chunk.choices.length) yield chunk.choices[0];
    }
  } catch (error) {
    if (error instanceof TypeError) throw new Problem("The connection broke off in mid-answer.");
    throw error;
  }
  if (!isWhole) throw new Problem("The connection ended before the answer did.");
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The gateway does not answer. Is it still running?");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

const headers = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function problemOf(response) {
  const said = await response.json().then((body) => body.error?.message, () => "");
  const after = response.headers.get("Retry-After");
  const again = after ? ` Try again in ${after} s.` : "";
  switch (response.status) {
    case 401:
      return new Problem("This gateway wants an API key that it knows.", { needsKey: true });
    case 429:
      return new Problem(`Too much at once: ${said}.${again}`);
    case 503:
      return new Problem(`No verifier can take this now: ${said}.${again}`);
    default:
      return new Problem(said ? `Refused: ${said}.` : `The gateway answered ${response.status}.`);
  }
}
