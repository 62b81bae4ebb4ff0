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
export function enter() {
  const given = new URLSearchParams(location.search).get("token");
  history.replaceState(null, "", location.pathname + location.hash);
  try {
    if (given) sessionStorage.setItem(KEPT, given);
    token = sessionStorage.getItem(KEPT) ?? "";
  } catch {
    // Storage is switched off: a reload will ask for the address.
    token = given ?? "";
  }
}

// Browsers send no header for pictures: the token is in their paths.
export const pictureOf = (row, kind = "picture") => `/${kind}/${encodeURIComponent(token)}/${row}`;

// The number is that of no sample: all that is opened has one.
export const reportAddress = () => `/report/${encodeURIComponent(token)}/0`;

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
