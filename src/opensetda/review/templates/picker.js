// The dialog in which a class is chosen by typing, or a new one is named.

import { $, make, percent } from "./dom.js";
import { typedEarly } from "./keys.js";

const MOST = 40;

let items = [];
let place = 0;
let asked = null;
let isBusy = false;

// Ask for a class; `take(label)` is called with it, and may throw to have the dialog stay.
// `options` are [{label, note}], the likeliest first; `naming`: a new name is what is wanted.
export function openPicker({ title, options, naming, take }) {
  asked = { options, naming, take };
  $("asks").textContent = title;
  $("typed").value = typedEarly();
  $("typed").placeholder = naming ? "Name of the new class" : "Type a class";
  refuse("");
  find();
  $("picker").showModal();
  $("typed").focus();
}

function refuse(text) {
  $("refused").textContent = text;
  $("refused").hidden = !text;
}

function find() {
  const typed = $("typed").value.trim();
  const wanted = typed.toLowerCase();
  const rank = ({ label }) => {
    const name = label.toLowerCase();
    if (name === wanted) return 0;
    return name.startsWith(wanted) ? 1 : name.includes(wanted) ? 2 : 3;
  };
  const ranked = asked.options.map((option) => ({ ...option, rank: wanted ? rank(option) : 1 }));
  // The sort is stable: the likeliest stay first.
  items = ranked.filter((item) => item.rank < 3).sort((a, b) => a.rank - b.rank);
  const left = items.length - MOST;
  items = items.slice(0, MOST);
  const exact = items.length > 0 && items[0].rank === 0;
  if (typed && !exact) {
    const item = { label: typed, note: "+ make this a class" };
    if (asked.naming) items.unshift(item);
    else items.push(item);
  }
  place = 0;
  show(left);
}

function show(left = 0) {
  const rows = items.map((item, index) =>
    make(
      "li",
      {
        id: `found-${index}`,
        role: "option",
        "aria-selected": String(index === place),
        onclick: () => take(index),
      },
      make("span", { class: "label", textContent: item.label }),
      make("span", { class: "note", textContent: item.note ?? "" }),
    ),
  );
  if (left > 0) rows.push(make("li", { class: "left", textContent: `and ${left} more: type on` }));
  $("found").replaceChildren(...rows);
  $("typed").setAttribute("aria-activedescendant", items.length ? `found-${place}` : "");
}

function move(by) {
  if (!items.length) return;
  place = (place + by + items.length) % items.length;
  for (const [index, row] of [...$("found").children].entries()) {
    row.setAttribute("aria-selected", String(index === place));
  }
  $("typed").setAttribute("aria-activedescendant", `found-${place}`);
  $(`found-${place}`).scrollIntoView({ block: "nearest" });
}

async function take(index) {
  const label = items[index]?.label ?? $("typed").value;
  if (!label.trim() || isBusy) return;
  isBusy = true;
  try {
    await asked.take(label);
    $("picker").close();
  } catch (error) {
    refuse(error.message);
  } finally {
    isBusy = false;
  }
}

export function optionsOf({ likely, unknown, classes, newClasses, unknownLabel }) {
  const first = likely.map(([label, share]) => ({ label, note: percent(share) }));
  const seen = new Set(likely.map(([label]) => label));
  return [
    ...first,
    { label: unknownLabel, note: unknown === null ? "no class" : `no class, ${percent(unknown)}` },
    ...newClasses.map((label) => ({ label, note: "new class" })),
    ...classes.filter((label) => !seen.has(label)).map((label) => ({ label })),
  ];
}

export function startPicker() {
  $("typed").addEventListener("input", () => {
    refuse("");
    find();
  });
  $("typed").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(event.key === "ArrowDown" ? 1 : -1);
    }
  });
  $("pick").addEventListener("submit", (event) => {
    event.preventDefault();
    take(place);
  });
  $("leave").addEventListener("click", () => $("picker").close());
}
