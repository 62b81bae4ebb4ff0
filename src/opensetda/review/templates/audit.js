// The audit: samples drawn at random, known or unknown, and the share that follows.

import { $, kbd, make, percent } from "./dom.js";

// A class can be said, too; without the run's label, which would be an answer.
export function showQuestion(classes, sample, take) {
  const buttons = classes.map((label, index) =>
    make(
      "li",
      {},
      make(
        "button",
        { type: "button", onclick: () => take(label) },
        index < 9 ? kbd(String(index + 1)) : null,
        ` ${label}`,
      ),
    ),
  );
  $("known-classes").replaceChildren(...buttons);
  const mark = $("marked");
  mark.hidden = sample.audit === null;
  if (sample.audit === null) return;
  mark.className = `verdict ${sample.audit === "known" ? "kept" : "new-class"}`;
  const named = sample.label === null || sample.kind === null ? "" : ` (${sample.label})`;
  mark.replaceChildren(
    "Marked ",
    make("strong", { textContent: sample.audit + named }),
    `; the run says ${sample.given}`,
  );
}

const span = (low, high) => `${Math.round(100 * low)} to ${Math.round(100 * high)} %`;

export function shareInWords({ unknown, marked, share, low, high }) {
  return `${percent(share)} unknown (${span(low, high)}), by ${unknown} of ${marked} and the scores of all targets`;
}

export function showShare(audit) {
  const { marked, size, share, low, high, runShare, origin, skipped } = audit;
  const said = { given: "given to the run", audited: "by an earlier audit" }[origin] ?? "estimated by the run";
  $("share-words").textContent = marked
    ? shareInWords(audit)
    : "Nothing marked yet";
  $("share-run").textContent = `${percent(runShare)} ${said}`;
  const left = Math.max(size - marked, 0);
  $("share-left").textContent =
    (left ? `${left} of ${size} to go.` : "All marked. Check labels next, or press Ctrl-C in the terminal.") +
    (skipped
      ? ` ${skipped} skipped: the share is less reliable, since what is hard to tell is missing from it.`
      : "");
  const place = (id, from, to = from) => {
    $(id).style.left = `${100 * from}%`;
    $(id).style.width = `${100 * (to - from)}%`;
  };
  $("share-range").hidden = $("share-point").hidden = !marked;
  place("share-range", low, high);
  $("share-point").style.left = `${100 * share}%`;
  $("share-estimate").style.left = `${100 * runShare}%`;
}
