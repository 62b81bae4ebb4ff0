// How a sample, a group and the lists look. Nothing here changes anything.

import { $, counted, kbd, make, percent, visible } from "./dom.js";

export const BORDER = "border";
export const titleOf = (key) => (key === BORDER ? "Near the threshold" : `Group ${key}`);

// In the paths of pictures, for which browsers send no header.
let secret = "";

export function showRun(name, itsSecret) {
  secret = itsSecret;
  $("run").textContent = visible(name);
  document.title = `Review of ${visible(name)}`;
}

const thumbnail = (row) => make("img", { src: `/thumbnail/${secret}/${row}`, alt: "", loading: "lazy" });

// Pictures near the one that is shown, ready to be put into the page.
const ready = new Map();

export function preload(rows) {
  for (const row of ready.keys()) if (!rows.includes(row)) ready.delete(row);
  for (const row of rows) if (!ready.has(row)) ready.set(row, bigPicture(row));
}

function bigPicture(row) {
  const image = make("img", { src: `/picture/${secret}/${row}`, alt: "", decoding: "async" });
  // Few pixels are shown as what they are.
  const sharpen = () => image.classList.toggle("pixels", image.naturalWidth <= 128);
  if (image.complete) sharpen();
  image.addEventListener("load", sharpen);
  return image;
}

export function showLists({ lists, isGrouping }, current, hasPictures, open) {
  const buttons = lists.map((list) => {
    const done = list.decided === list.size;
    const name = list.name ?? (list.key === BORDER ? "check one by one" : "not named");
    const picture = hasPictures && list.rows.length ? thumbnail(list.rows[0]) : null;
    return make(
      "button",
      {
        type: "button",
        class: done && list.size ? "list done" : "list",
        "aria-current": String(list.key === current),
        onclick: () => open(list.key),
      },
      picture,
      make(
        "span",
        { class: "what" },
        make("span", { class: "title", textContent: titleOf(list.key) }),
        make("span", { class: "name", textContent: name }),
      ),
      make("span", { class: "far", textContent: `${list.decided}/${list.size}` }),
    );
  });
  const place = $("lists");
  const at = [place.scrollLeft, place.scrollTop];
  const words = isGrouping ? "Grouping the unknowns…" : "Unknown groups";
  const heading = make("h2", { textContent: lists.length > 1 || isGrouping ? words : "No unknowns" });
  place.replaceChildren(...buttons.slice(0, 1), heading, ...buttons.slice(1));
  [place.scrollLeft, place.scrollTop] = at;
  place.querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

export function showSample(sample, unknownLabel, take) {
  const figure = $("picture");
  figure.hidden = !sample.picture;
  $("one").classList.toggle("bare", !sample.picture);
  if (sample.picture) {
    if (!ready.has(sample.row)) preload([...ready.keys(), sample.row]);
    figure.replaceChildren(ready.get(sample.row));
  }
  $("name").textContent = $("name").title = visible(sample.name);
  const nearest =
    sample.given === unknownLabel ? [", nearest to ", strong(sample.nearest)] : [];
  $("given").replaceChildren("Label: ", chip(sample.given, sample.given === unknownLabel), ...nearest);
  showDecided(sample);
  const rows = sample.likely.map(([label, share], index) =>
    bar(String(index + 1), label, share, label === sample.given, false, take),
  );
  const isUnknown = sample.given === unknownLabel;
  rows.push(bar("0", unknownLabel, sample.unknown, isUnknown, true, take));
  $("bars").replaceChildren(...rows);
}

const strong = (text) => make("strong", { textContent: text });

function chip(label, isUnknown) {
  return make("span", { class: isUnknown ? "chip unknown" : "chip", textContent: label });
}

function showDecided(sample) {
  const place = $("decided");
  place.hidden = sample.kind === null;
  if (sample.kind === null) return;
  place.className = `verdict ${sample.kind.replace(" ", "-")}`;
  const words = { kept: "Kept: ", corrected: "Corrected to ", "new class": "New class: " };
  place.replaceChildren(words[sample.kind], strong(sample.label));
}

function bar(key, label, share, isGiven, isUnknown, take) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${Math.max(100 * share, 0.5)}%`;
  const classes = ["bar", isGiven ? "given" : "", isUnknown ? "unknown" : ""];
  const button = make(
    "button",
    { type: "button", class: classes.join(" ").trim(), onclick: () => take(label) },
    kbd(key),
    make("span", { class: "label", textContent: label, title: label }),
    make("span", { class: "track" }, fill),
    make("span", { class: "share", textContent: percent(share) }),
  );
  return make("li", {}, button);
}

export function showGuesses(likely, take) {
  const buttons = likely.map(([label, share], index) =>
    make(
      "li",
      {},
      make(
        "button",
        { type: "button", onclick: () => take(label) },
        kbd(String(index + 1)),
        ` ${label} `,
        make("span", { class: "share", textContent: percent(share) }),
      ),
    ),
  );
  $("guesses").replaceChildren(make("li", { class: "lead", textContent: "Most likely classes:" }), ...buttons);
}

export function showGrid(samples, isSelected, toggle, look) {
  const tiles = samples.map((sample, place) => {
    const picture = sample.picture
      ? thumbnail(sample.row)
      : make("span", { class: "text", textContent: sample.name });
    const kind = sample.kind === null ? "" : sample.kind.replace(" ", "-");
    const tile = make(
      "button",
      {
        type: "button",
        class: "pick",
        "aria-pressed": String(isSelected(sample)),
        "aria-label": sample.name,
        title: sample.name,
        onclick: () => toggle(place),
        ondblclick: () => look(place),
      },
      picture,
      sample.kind === null ? null : make("span", { class: `verdict ${kind}`, textContent: sample.label }),
    );
    const closer = make("button", {
      type: "button",
      class: "closer",
      tabIndex: -1,
      title: "Look at it",
      "aria-label": `Look at ${sample.name}`,
      textContent: "⤢",
      onclick: () => look(place),
    });
    return make("div", { class: "tile" }, tile, closer);
  });
  $("grid").replaceChildren(...tiles);
}

export function showSelected(number, size, decided) {
  const left = size - decided;
  const which = decided && left ? `, ${left.toLocaleString("en")} not decided` : "";
  $("hint").textContent =
    `${number.toLocaleString("en")} of ${counted(size, "sample")} selected${which}. ` +
    "Click, tap or press space to select or deselect a sample.";
}

export function showStrip(marks, place, go) {
  const cells = [...marks].map((mark, index) =>
    make("span", {
      class: `mark ${mark === "." ? "open" : mark}${index === place ? " here" : ""}`,
      onclick: () => go(index),
    }),
  );
  $("strip").replaceChildren(...cells);
}
