// Which key does what: the keyboard is the quickest way through a review.

import { inTurn } from "./api.js";

const DIGIT = /^[0-9]$/;

// What was typed after a key that asks for a class, before its dialog was there.
let early = null;

export function typedEarly() {
  const text = early ?? "";
  early = null;
  return text;
}

export function listen({ keys, asking, digit, undo, inGrid, moveTile }) {
  // Brackets need AltGr on many keyboards, which counts as Ctrl and Alt on some systems.
  const withAltGr = (event) => event.getModifierState("AltGraph");
  const withCtrl = (event) => (event.ctrlKey || event.metaKey) && !withAltGr(event);

  const workOf = (event) => {
    const { key } = event;
    if (withCtrl(event)) return key.toLowerCase() === "z" ? undo : undefined;
    if (inGrid() && (key.startsWith("Arrow") || key === " ")) return () => moveTile(key);
    if (DIGIT.test(key)) return () => digit(Number(key));
    return keys[key.length === 1 ? key.toLowerCase() : key];
  };

  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (document.querySelector("dialog[open]") || event.isComposing) return;
    if (event.altKey && !withAltGr(event)) return;
    if (target.matches?.("#place, #find *, #go")) {
      if (key === "Escape") target.blur();
      return;
    }
    if (early !== null) {
      if (key.length === 1) early += key;
      event.preventDefault();
      return;
    }
    const isTile = target.matches?.(".pick");
    // A button that was reached with the tab key does what it says.
    const isOwn = key === " " || (key === "Enter" && !isTile);
    if (isOwn && target.matches?.("button")) return;
    const work = workOf(event);
    if (!work) return;
    event.preventDefault();
    if (event.repeat && !key.startsWith("Arrow")) return;
    const asks = !withCtrl(event) && asking.includes(key.toLowerCase());
    if (asks) early = "";
    inTurn(work).then(() => asks && typedEarly());
  });
}
