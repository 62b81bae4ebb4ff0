// The samples whose labels help most, and the fit that learns from them.

import { get, inTurn, post, reportAddress } from "./api.js";
import { $, counted, kbd, make, percent, say, showTrouble, visible } from "./dom.js";
import { about, far, take } from "./state.js";

const MOST_KEYS = 9;
const SECOND = 1000;

// All classes, if each has a key; of many, the likeliest ones.
export function classesFor(sample) {
  const all = [...about.classes, ...far.newClasses];
  return all.length <= MOST_KEYS ? all : sample.likely.map(([label]) => label).slice(0, MOST_KEYS);
}

export function showQuestion(sample, { choose, name, more }) {
  const button = (label, key, work, kind = "") =>
    make("li", {}, make("button", { type: "button", class: kind, onclick: work }, kbd(key), ` ${label}`));
  const labels = classesFor(sample);
  const known = labels.map((label, place) => button(label, String(place + 1), () => choose(label)));
  const isAll = labels.length === about.classes.length + far.newClasses.length;
  $("known-classes").replaceChildren(
    ...known,
    ...(isAll ? [] : [button("Other class…", "C", more)]),
    button(about.unknown, "0", () => choose(about.unknown), "other"),
    button("New class…", "N", name, "other"),
  );
  const mark = $("marked");
  mark.hidden = sample.label === null;
  if (sample.label === null) return;
  mark.className = `verdict ${sample.kind.replace(" ", "-")}`;
  mark.replaceChildren("Marked ", make("strong", { textContent: sample.label }));
}

export function showUseful({ marked, next, gain, share }, size) {
  const parts = [`${counted(marked, "sample")} marked.`];
  if (gain > 0) {
    const labels = Math.max(1, Math.round(gain * size)).toLocaleString("en");
    parts.push(`The next ${next} should put about ${labels} of ${size.toLocaleString("en")} labels right (${percent(gain)}).`);
  }
  if (share !== null) {
    const [middle, low, high] = share.map((value) => Math.round(100 * value));
    parts.push(`By your marks ${middle} % are unknown (${low} to ${high} %).`);
  }
  if (marked >= next) parts.push("Refit whenever you like: it learns from them.");
  $("useful").textContent = parts.join(" ");
}

export function showRefit() {
  const { refit } = far;
  const isRunning = refit?.state === "running";
  $("refit").disabled = isRunning || !far.decided;
  $("fitting").hidden = !isRunning;
  if (isRunning) $("fitting").textContent = `Fitting ${visible(refit.out)}: ${visible(refit.line)}`;
  $("report").hidden = !far.report;
  $("report").href = reportAddress();
}

let isWatching = false;

// Until the fit is done; marking goes on meanwhile.
export async function watch() {
  if (isWatching) return;
  isWatching = true;
  try {
    while (far.refit?.state === "running") {
      await new Promise((done) => setTimeout(done, SECOND));
      await inTurn(async () => {
        take(await get("/api/summary"));
        showRefit();
      });
    }
  } finally {
    isWatching = false;
  }
  if (far.refit?.state === "failed") showTrouble(`The fit failed: ${far.refit.line}`);
  // The server goes on with the new run.
  if (far.run !== about.run) location.replace(`${location.pathname}?run=${encodeURIComponent(far.run)}`);
}

export async function refit() {
  if (far.refit?.state === "running") return say("The fit is at work");
  take(await post("/api/refit"));
  showRefit();
  watch();
  return say("Fitting again, with what you marked");
}

export async function finish() {
  const { marked, commands } = await get("/api/finish");
  $("done-words").textContent =
    `${counted(marked, "sample")} marked, all saved. Close this page, and press Ctrl-C in the terminal.`;
  const rows = Object.entries(commands).map(([what, command]) =>
    make("div", {}, make("dt", { textContent: what }), make("dd", { textContent: command })),
  );
  $("done-commands").replaceChildren(...rows);
  $("done").showModal();
}
