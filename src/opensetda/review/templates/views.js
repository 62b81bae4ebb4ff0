// How a sample, a group and the lists look. Nothing here changes anything.

import { pictureOf } from "./api.js";
import { $, counted, kbd, make, percent, visible } from "./dom.js";

const BARS = 5;
const HEADINGS = { check: "To check", class: "By predicted class", group: "Unknown groups" };

export function showRun(name) {
  $("run").textContent = visible(name);
  document.title = `Review of ${visible(name)}`;
}

const thumbnail = (row) => make("img", { src: pictureOf(row, "thumbnail"), alt: "", loading: "lazy" });

// Pictures near the one that is shown, ready to be put into the page.
const ready = new Map();

export function preload(rows) {
  for (const row of ready.keys()) if (!rows.includes(row)) ready.delete(row);
  for (const row of rows) if (!ready.has(row)) ready.set(row, bigPicture(row));
}

function bigPicture(row) {
  const image = make("img", { src: pictureOf(row), alt: "", decoding: "async" });
  // Few pixels are shown as what they are.
  const sharpen = () => image.classList.toggle("pixels", image.naturalWidth <= 128);
  if (image.complete) sharpen();
  image.addEventListener("load", sharpen);
  return image;
}

export function showLists({ lists, isGrouping }, current, hasPictures, open, search) {
  const shown = lists.filter((list) => list.kind !== "find");
  const rows = [];
  let kind = "useful";
  for (const list of shown) {
    if (list.kind !== kind && list.kind in HEADINGS) rows.push(make("h2", { textContent: HEADINGS[list.kind] }));
    ({ kind } = list);
    rows.push(listButton(list, current, hasPictures, open));
  }
  if (isGrouping) rows.push(make("h2", { textContent: "Looking for classes and groups…" }));
  else if (kind !== "group") rows.push(make("h2", { textContent: "No unknowns" }));
  const finder = make("button", { type: "button", class: "list finder", onclick: search }, "Search ", kbd("F"));
  finder.setAttribute("aria-current", String(current.startsWith("find?")));
  const place = $("lists");
  const at = place.scrollTop;
  place.replaceChildren(finder, ...rows);
  place.scrollTop = at;
  place.querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest" });
  showMenu(shown, current);
}

function listButton(list, current, hasPictures, open) {
  const done = list.decided === list.size;
  const picture = hasPictures && list.rows.length ? thumbnail(list.rows[0]) : null;
  const name = list.kind === "group" ? (list.name ?? "not named") : null;
  return make(
    "button",
    {
      type: "button",
      class: `list ${list.kind}${done && list.size ? " done" : ""}`,
      "data-key": list.key,
      "aria-current": String(list.key === current),
      onclick: () => open(list.key),
    },
    picture,
    make(
      "span",
      { class: "what" },
      make("span", { class: "title", textContent: list.title }),
      name === null ? null : make("span", { class: "name", textContent: name }),
    ),
    make("span", { class: "far", textContent: `${list.decided}/${list.size}` }),
  );
}

// On narrow screens the lists are a menu.
function showMenu(lists, current) {
  const option = (list) => {
    const text = `${list.title} (${list.decided}/${list.size})`;
    return make("option", { value: list.key, textContent: text, selected: list.key === current });
  };
  const kinds = [...new Set(lists.map((list) => list.kind))];
  const groups = kinds.map((kind) => {
    const options = lists.filter((list) => list.kind === kind).map(option);
    return kind in HEADINGS ? make("optgroup", { label: HEADINGS[kind] }, ...options) : options;
  });
  const search = make("option", { value: "", textContent: "Search", selected: current.startsWith("find?") });
  $("go").replaceChildren(...groups.flat(), search);
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
    sample.given === unknownLabel ? [" nearest to ", strong(sample.nearest)] : [];
  $("given").replaceChildren("Label: ", chip(sample.given, sample.given === unknownLabel), ...nearest);
  showDecided(sample);
  const rows = sample.likely.slice(0, BARS).map(([label, share], index) =>
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
  const buttons = likely.slice(0, BARS).map(([label, share], index) =>
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

export function showGrid(samples, { isSelected, toggle, look, kind: ofList }) {
  const tiles = samples.map((sample, place) => {
    const kind = sample.kind === null ? "" : sample.kind.replace(" ", "-");
    const sure = `${sample.given}, ${percent(sample.confidence)}`;
    const ofOpen = ofList === "class" ? percent(sample.confidence) : sure;
    const footer = sample.kind === null ? ofOpen : sample.label;
    const tile = make(
      "button",
      {
        type: "button",
        class: "pick",
        "aria-pressed": String(isSelected(sample)),
        "aria-label": `${sample.name}: ${footer}`,
        onclick: () => toggle(place),
        ondblclick: () => look(place),
      },
      sample.picture ? thumbnail(sample.row) : inWords(sample),
      sample.kind === null && ofList === "group" ? null : make("span", { class: `verdict ${kind}`, textContent: footer }),
    );
    // A title has lines.
    tile.title = [sample.name, sure].map(visible).join("\n");
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

const withMinus = (text) => text.replace("-", "−");

function signed(number) {
  const rounded = number.toFixed(1).replace(/^-(?=0\.0$)/, "");
  return (number >= 0.05 ? "+" : "") + withMinus(rounded);
}

// A row of a table: its name, and where it stands out.
function inWords(sample) {
  const most = sample.columns.slice(0, 3).map(({ name, apart }) =>
    make("span", { class: "column" }, make("span", { textContent: name }), ` ${signed(apart)}`),
  );
  return make("span", { class: "text" }, make("span", { class: "id", textContent: sample.name }), ...most);
}

// Columns that differ most, in standard deviations of all targets.
export function showColumns(place, columns, note) {
  place.hidden = !columns.length && !note;
  if (!columns.length) return place.replaceChildren(make("p", { class: "quiet", textContent: note }));
  const { class: nearest } = columns[0];
  const ofSource = nearest === undefined ? [] : [`Nearest source row: ${nearest}`, `Mean of ${nearest}`];
  const head = ["Column", "Value", "All targets", "Differs by", ...ofSource];
  const cell = (content, name = "") => make("td", { class: name, textContent: content });
  const rows = columns.map((one) => {
    const row = make("tr", {}, make("th", { scope: "row", textContent: one.name }));
    row.append(cell(withMinus(String(one.value))), cell(withMinus(String(one.typical))), cell(signed(one.apart), "apart"));
    if (nearest !== undefined) row.append(cell(withMinus(String(one.near))), cell(withMinus(String(one.mean))));
    return row;
  });
  const heads = head.map((text) => make("th", { scope: "col", textContent: text }));
  return place.replaceChildren(
    make("p", { class: "quiet", textContent: "Where it stands out, in standard deviations of all targets:" }),
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)),
  );
}

export function showPages(size, start, count, turn) {
  const place = $("pages");
  place.hidden = size <= count;
  if (place.hidden) return;
  const button = (label, to, isOff) =>
    make("button", { type: "button", textContent: label, disabled: isOff, onclick: () => turn(to) });
  const last = Math.min(start + count, size);
  place.replaceChildren(
    button("← Before", Math.max(start - count, 0), start === 0),
    make("span", { textContent: `${start + 1} to ${last} of ${size.toLocaleString("en")}` }),
    button("After →", start + count, last >= size),
  );
}

export function showSelected(number, size, decided, isPaged) {
  const left = size - decided;
  const which = decided && left ? `, ${left.toLocaleString("en")} not decided` : "";
  $("hint").textContent =
    `${number.toLocaleString("en")} of ${counted(size, isPaged ? "shown sample" : "sample")} selected${which}. ` +
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
