// What the server is asked. It holds the state: nothing is shown as saved before it said so.

import { say, showTrouble } from "./dom.js";

const HEADER = "X-Review-Token";
const KEPT = "token";
const GONE =
  "The server does not answer, so nothing more is saved. " +
  "Start 'osda review' again and open the address that it prints.";

let token = "";
let trouble = "";

// The token is in the address at first, and then in the storage of this tab: a reload finds it there,
// and no page of another port can read it. The address need not be seen by who looks over a shoulder.
export async function enter() {
  const given = new URLSearchParams(location.search).get("token");
  history.replaceState(null, "", location.pathname + location.hash);
  try {
    token = sessionStorage.getItem(KEPT) ?? "";
  } catch {
    // Storage is switched off: a reload will ask for the address.
  }
  if (!given || !/^[\w-]+$/.test(given)) return;
  const before = token;
  token = given;
  try {
    // What a browser was started with works once, for the token of this review.
    ({ token } = await get("/api/token"));
    sessionStorage.setItem(KEPT, token);
  } catch {
    if (token === given) token = before;
  }
}

async function ask(path, options = {}) {
  let answer;
  const headers = { ...options.headers, [HEADER]: token };
  try {
    answer = await fetch(path, { cache: "no-store", ...options, headers });
  } catch {
    showTrouble(GONE);
    throw new Error(GONE);
  }
  const content = await answer.json();
  if (!answer.ok) {
    // A wrong value is said where it was typed; everything else concerns the whole page.
    if (answer.status !== 400) showTrouble(content.error);
    throw new Error(content.error);
  }
  // It stays until the server says that it is over.
  trouble = content.trouble ?? trouble;
  showTrouble(trouble);
  return content;
}

export const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(query)}`);

export const post = (path, body = {}) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

let latest = Promise.resolve();

// One after the other, however fast the keys come.
export function inTurn(work) {
  latest = latest.then(work).catch((error) => say(error.message));
  return latest;
}
