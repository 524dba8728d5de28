// The server's interface. Addresses are relative, so that the page also works behind a proxy that puts it in a folder.

const KEY = "anydepth-key";

export class Problem extends Error {
  // status 0: there was no answer at all
  constructor(message, status = 0, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

export async function get(path) {
  return (await answered(path, { cache: "no-store" })).json();
}

export async function post(path, fields, signal) {
  return (await answered(path, request(fields, signal))).json();
}

// server-sent events: [name, data] one after the other
export async function* stream(path, fields, signal) {
  const response = await answered(path, request({ ...fields, stream: true }, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch(lost);
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) yield read(event);
  }
}

function read(event) {
  const [name, data] = event.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
  const said = JSON.parse(data);
  if (name === "error") throw new Problem(said.error, 500);
  return [name, said];
}

function request(fields, signal) {
  const key = apiKey.get();
  return {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(key ? { ...fields, api_key: key } : fields),
    signal,
  };
}

async function answered(path, settings) {
  const response = await fetch(path, settings).catch(lost);
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Problem(said.error ?? response.statusText, response.status, Number(response.headers.get("Retry-After")));
}

function lost(error) {
  throw error.name === "AbortError" ? error : new Problem("no answer");
}
