// The form that searches among all targets. What it asks for is the key of a list.

import { $, make } from "./dom.js";

const FIELDS = ["text", "label", "state", "order"];

// What the form was last asked for: it is not filled in again while someone types on.
let asked = null;

export function keyOfForm() {
  const given = FIELDS.map((name) => [name, $(`find-${name}`).value.trim()]).filter(([, value]) => value);
  asked = `find?${new URLSearchParams(given)}`;
  return asked;
}

export function showForm(key, labels) {
  const given = new URLSearchParams(key.slice("find?".length));
  const label = key === asked ? $("find-label").value : (given.get("label") ?? "");
  const options = ["", ...labels].map((name) => {
    const option = make("option", { textContent: name || "any label" });
    // As it is: what cannot be seen is an escape in the text alone.
    option.value = name;
    return option;
  });
  $("find-label").replaceChildren(...options);
  $("find-label").value = label;
  if (key === asked) return;
  asked = key;
  $("find-text").value = given.get("text") ?? "";
  $("find-state").value = given.get("state") ?? "";
  $("find-order").value = given.get("order") ?? "confidence";
}
