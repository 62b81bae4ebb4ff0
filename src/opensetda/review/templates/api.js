// What the server is asked. It holds the state: nothing is shown as saved before it said so.

import { say, showTrouble } from "./dom.js";

const GONE =
  "The server does not answer, so nothing more is saved. " +
  "Start 'osda review' again and open the address that it prints.";

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
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
  showTrouble("");
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
