// The form that searches among all targets. What it asks for is the key of a list.

import { $, make } from "./dom.js";

const FIELDS = ["text", "label", "state", "order"];

export function keyOfForm() {
  const given = FIELDS.map((name) => [name, $(`find-${name}`).value.trim()]).filter(([, value]) => value);
  return `find?${new URLSearchParams(given)}`;
}

export function showForm(key, labels) {
  const given = new URLSearchParams(key.slice("find?".length));
  const options = ["", ...labels].map((label) => make("option", { value: label, textContent: label || "any label" }));
  // The values stay as they are: what cannot be seen is an escape in the text alone.
  for (const [index, option] of options.entries()) option.value = ["", ...labels][index];
  $("find-label").replaceChildren(...options);
  for (const name of FIELDS) $(`find-${name}`).value = given.get(name) ?? (name === "order" ? "doubt" : "");
}
