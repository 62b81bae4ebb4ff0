// A grid of samples: which of them are selected, and which has the focus.

import { inTurn } from "./api.js";
import { $, visible } from "./dom.js";
import { TILES, about, far, fetchPage, here, isPaged, listOf, stillOpen } from "./state.js";
import * as views from "./views.js";

export const group = {
  key: null,
  start: 0, // of the part that is shown, if the list is shown in parts
  wanted: 0,
  samples: [],
  likely: [],
  columns: [],
  toggled: new Set(),
  tile: 0,
};

export async function groupSamples(list) {
  const first = isPaged(list) ? group.start : 0;
  const wanted = isPaged(list) ? TILES : Math.max(TILES, group.key === here.key ? group.wanted : 0);
  const samples = [];
  for (let start = first; start < Math.min(first + wanted, list.size); start += TILES) {
    const page = await fetchPage(here.key, start, TILES);
    group.likely = page.likely;
    group.columns = page.columns;
    samples.push(...page.samples);
  }
  Object.assign(group, { key: here.key, wanted });
  return samples;
}

export function showGroup(list, samples, { decide, look, turnPage }) {
  group.samples = samples;
  views.showGuesses(group.likely, (label) => inTurn(() => decide(label)));
  views.showColumns($("group-columns"), group.columns, far.columnsNote);
  views.showGrid(samples, { isSelected, toggle, look: (place) => inTurn(() => look(place)), kind: list.kind });
  $("note").textContent = list.kind === "group" ? visible(far.note) : "";
  $("more").hidden = isPaged(list) || samples.length >= list.size;
  views.showPages(isPaged(list) ? list.size : 0, group.start, TILES, (start) => inTurn(() => turnPage(start)));
  const kept = { group: about.unknown, class: list.title }[list.kind];
  $("keep").firstChild.textContent = `Keep ${kept === undefined ? "labels" : visible(kept)} `;
  showSelected();
}

// Without a toggle, what is not decided is selected; if all is decided, all is.
function isFirst({ kind }) {
  const list = listOf(here.key);
  if (kind === null) return true;
  return isPaged(list) ? group.samples.every((one) => one.kind !== null) : !stillOpen(list);
}

const isSelected = (sample) => isFirst(sample) !== group.toggled.has(sample.row);

export function selectedCount() {
  const list = listOf(here.key);
  if (isPaged(list)) return group.samples.filter(isSelected).length;
  const known = group.samples.filter((one) => group.toggled.has(one.row));
  const out = known.filter(isFirst).length;
  return (stillOpen(list) || list.size) - out + (known.length - out);
}

function showSelected() {
  const list = listOf(here.key);
  const shown = isPaged(list) ? group.samples.length : list.size;
  const decided = isPaged(list) ? group.samples.filter((one) => one.kind !== null).length : list.decided;
  views.showSelected(selectedCount(), shown, decided, isPaged(list));
}

function toggle(place) {
  const { row } = group.samples[place];
  if (!group.toggled.delete(row)) group.toggled.add(row);
  const tile = tiles()[place];
  tile.setAttribute("aria-pressed", String(isSelected(group.samples[place])));
  group.tile = place;
  showSelected();
}

const tiles = () => [...$("grid").querySelectorAll(".pick")];

function focusTile(place) {
  const all = tiles();
  group.tile = Math.min(Math.max(place, 0), all.length - 1);
  all[group.tile]?.focus();
}

export function moveTile(key) {
  if (!tiles().includes(document.activeElement)) return focusTile(group.tile);
  const columns = getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  return focusTile(group.tile + by);
}
