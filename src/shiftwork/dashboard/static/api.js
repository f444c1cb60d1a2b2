// Calls the public HTTP API only. The token is kept in this tab only.

const TOKEN = "shiftwork.token";

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}`);
    this.status = status;
    this.code = problem.code;
    this.hint = problem.hint;
    this.where = problem.where;
  }
}

export function token() {
  return sessionStorage.getItem(TOKEN);
}

export function keepToken(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

export function workspace() {
  return new URLSearchParams(location.search).get("workspace");
}

export function address(path, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries({ workspace: workspace(), view: "native", ...query })) {
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") words.append(name, each);
  }
  return words.size ? `${path}?${words}` : path;
}

export function headers(more = {}) {
  return token() ? { ...more, Authorization: `Bearer ${token()}` } : more;
}

async function call(method, path, body, query) {
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method,
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, { detail: "The server cannot be reached.", hint: "Is `shiftwork serve` running?" });
  }
  if (answer.status === 204) return null;
  const text = await answer.text();
  const answered = text ? JSON.parse(text) : {};
  if (!answer.ok) throw new Refused(answer.status, answered);
  return answered;
}

export const get = (path, query) => call("GET", path, undefined, query);
export const post = (path, body = {}) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);
export const change = (path, body) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);

// Returns null for what this server lacks or this token may not see, so that one refusal does not empty a page.
export async function tryGet(path, query) {
  try {
    return await get(path, query);
  } catch (error) {
    if (error.status === 404 || error.status === 403) return null;
    throw error;
  }
}

// The number of approvals and questions, as on the approvals page.
export async function waitingForPeople() {
  return (await get("/api/approvals", { limit: 1000 })).approvals.length;
}

// Saves an artifact as a file. It is fetched with the token, which a plain link could not send.
export async function save({ id, name }) {
  const answer = await fetch(address(`/api/artifacts/${encodeURIComponent(id)}`), { headers: headers() });
  if (!answer.ok) throw new Refused(answer.status, await answer.json());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name ?? id;
  link.click();
  URL.revokeObjectURL(link.href);
}
