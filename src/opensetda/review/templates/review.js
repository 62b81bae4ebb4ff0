// The review: where one is, what is decided, and which key does it.

import { enter, get, inTurn, post } from "./api.js";
import { $, counted, say, visible } from "./dom.js";
import { listen } from "./keys.js";
import { openPicker, optionsOf, startPicker } from "./picker.js";
import * as views from "./views.js";

const PAGE = 20;
const TILES = 60;

const { BORDER, titleOf } = views;
const about = { classes: [], unknown: "unknown", pictures: false };
const far = { decided: 0, canUndo: false, newClasses: [], lists: [], isGrouping: false, note: "" };
const here = { key: BORDER, place: 0, isGrid: false };
const pages = new Map();
let sample = null;
const group = { key: null, wanted: 0, samples: [], likely: [], toggled: new Set(), tile: 0 };

const listOf = (key) => far.lists.find((list) => list.key === key);
const stillOpen = (list) => list.size - list.decided;

// Where one is stands in the address, so that a reload leads back to it.
function readAddress() {
  const [kind, number, place] = location.hash.slice(1).split("/");
  if (kind === BORDER && listOf(BORDER).size) return { key: BORDER, place: Number(number) - 1, isGrid: false };
  if (kind === "group" && listOf(number) && number !== BORDER) {
    return { key: number, place: place ? Number(place) - 1 : 0, isGrid: !place };
  }
  return null;
}

function writeAddress() {
  const { key, place, isGrid } = here;
  const group = isGrid ? `#group/${key}` : `#group/${key}/${place + 1}`;
  history.replaceState(null, "", location.pathname + (key === BORDER ? `#border/${place + 1}` : group));
}

function take(summary) {
  for (const name of Object.keys(far)) far[name] = summary[name];
  pages.clear();
}

async function fetchPage(key, start, count) {
  const name = `${key}/${start}/${count}`;
  if (!pages.has(name)) pages.set(name, await get("/api/list", { key, start, count }));
  return pages.get(name);
}

async function go(key, place = 0, isGrid = false) {
  const list = listOf(key);
  const isOther = key !== here.key;
  if (isOther) group.toggled.clear();
  if (isOther) group.tile = 0;
  else if (!isGrid) group.tile = place;
  here.key = key;
  here.place = Math.min(Math.max(place || 0, 0), Math.max(list.size - 1, 0));
  here.isGrid = isGrid && key !== BORDER;
  await show();
  if (isOther) window.scrollTo(0, 0);
}

// A list begins with what is still open: near the threshold one sample, of a group the grid.
async function openList(key) {
  if (key !== BORDER) return go(key, 0, true);
  const { place } = await get("/api/open", { key });
  return go(key, place);
}

// All is fetched before anything is shown: what is on the page belongs together.
async function show() {
  const list = listOf(here.key);
  const content = here.isGrid ? await groupSamples(list) : list.size && (await nearSamples());
  writeAddress();
  showLists();
  $("undo").disabled = !far.canUndo;
  $("far").textContent = `${list.decided} of ${list.size} decided`;
  $("meter").max = Math.max(list.size, 1);
  $("meter").value = list.decided;
  $("title").textContent = titleOf(here.key);
  $("about").textContent = aboutList(list);
  $("one").hidden = here.isGrid || !list.size;
  $("jump").hidden = here.isGrid || !list.size;
  $("group").hidden = !here.isGrid;
  $("where").classList.toggle("single", !here.isGrid && list.size > 0);
  $("strip").hidden = here.isGrid;
  $("look").hidden = here.key === BORDER;
  $("look").firstChild.textContent = here.isGrid ? "Look " : "Group ";
  $("actions").hidden = !list.size;
  $("actions").classList.toggle("grid", here.isGrid);
  if (here.isGrid) showGroup(list, content);
  else if (list.size) showOne(list, content);
  $("main").hidden = false;
}

function showLists() {
  const open = (key) => inTurn(() => openList(key));
  views.showLists(far, here.key, about.pictures, open);
}

// The groups are found while one looks at the first samples.
async function groupsFound(turn) {
  let isThere = true;
  while (far.isGrouping && isThere) {
    await new Promise((done) => setTimeout(done, 400));
    isThere = false;
    await turn(async () => {
      take(await get("/api/summary"));
      isThere = true;
    });
  }
}

function aboutList(list) {
  if (!list.size) return "There are no samples in this list.";
  if (here.key === BORDER) return "The least clear cases first, from both sides of the threshold in turn.";
  if (list.name !== null) return `Mostly “${visible(list.name)}”.`;
  return "Deselect samples that do not belong here, then name the rest.";
}

const nearSamples = () => fetchPage(here.key, here.place - (here.place % PAGE), PAGE);

function showOne(list, page) {
  const place = here.place - page.start;
  sample = page.samples[place];
  const near = page.samples.slice(Math.max(place - 1, 0), place + 3);
  views.preload(near.filter((one) => one.picture).map((one) => one.row));
  views.showSample(sample, about.unknown, (label) => inTurn(() => decide(label)));
  views.showStrip(page.marks, here.place, (to) => inTurn(() => go(here.key, to)));
  $("place").value = here.place + 1;
  $("place").max = list.size;
  $("of").textContent = `of ${list.size.toLocaleString("en")}`;
  $("back").disabled = here.place === 0;
  $("next").disabled = here.place === list.size - 1;
  $("keep").firstChild.textContent = "Keep ";
}

async function groupSamples(list) {
  const wanted = Math.max(TILES, group.key === here.key ? group.wanted : 0);
  const samples = [];
  for (let start = 0; start < Math.min(wanted, list.size); start += TILES) {
    const page = await fetchPage(here.key, start, TILES);
    group.likely = page.likely;
    samples.push(...page.samples);
  }
  Object.assign(group, { key: here.key, wanted });
  return samples;
}

function showGroup(list, samples) {
  group.samples = samples;
  views.showGuesses(group.likely, (label) => inTurn(() => decide(label)));
  views.showGrid(samples, isSelected, toggle, (place) => inTurn(() => go(here.key, place)));
  $("note").textContent = visible(far.note);
  $("more").hidden = samples.length >= list.size;
  $("keep").firstChild.textContent = `Keep ${visible(about.unknown)} `;
  showSelected();
}

function isSelected({ row, kind }) {
  const list = listOf(here.key);
  const isFirst = kind === null || list.decided === list.size;
  return isFirst !== group.toggled.has(row);
}

function selectedCount() {
  const list = listOf(here.key);
  const wasFirst = ({ kind }) => kind === null || list.decided === list.size;
  const known = group.samples.filter((one) => group.toggled.has(one.row));
  const out = known.filter(wasFirst).length;
  return (stillOpen(list) || list.size) - out + (known.length - out);
}

function showSelected() {
  const list = listOf(here.key);
  views.showSelected(selectedCount(), list.size, list.decided);
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

function moveTile(key) {
  if (!tiles().includes(document.activeElement)) return focusTile(group.tile);
  const columns = getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  return focusTile(group.tile + by);
}

// Decide on what is shown, and go on; null: keep.
async function decide(label) {
  if (here.isGrid) return decideGroup(label);
  const answer = await post("/api/decide", { row: sample.row, list: here.key, label });
  take(answer);
  say(answer.label === null || answer.label === sample.given ? "Kept" : `Saved: ${answer.label}`);
  return goOn();
}

async function decideGroup(label) {
  if (!selectedCount()) return say("Nothing is selected");
  const body = { list: here.key, label, toggled: [...group.toggled] };
  const answer = await post("/api/decide-group", body);
  take(answer);
  group.toggled.clear();
  const list = listOf(here.key);
  const what = answer.label === null ? "kept" : answer.label;
  const left = stillOpen(list) ? `, ${stillOpen(list)} left in this group` : "";
  say(`${counted(answer.count, "sample")}: ${what}${left}`);
  return stillOpen(list) ? show() : nextOpenList();
}

async function goOn() {
  const list = listOf(here.key);
  if (here.place + 1 < list.size) return go(here.key, here.place + 1);
  if (!stillOpen(list)) return nextOpenList();
  const { place } = await get("/api/open", { key: here.key });
  return go(here.key, place);
}

async function nextOpenList() {
  const keys = far.lists.map((list) => list.key);
  const from = keys.indexOf(here.key);
  const order = [...keys.slice(from + 1), ...keys.slice(0, from)];
  const next = order.find((key) => stillOpen(listOf(key)));
  if (next !== undefined) return openList(next);
  say("All done: every sample in these lists is decided");
  return show();
}

async function step(by) {
  if (here.isGrid) return otherList(by);
  const place = here.place + by;
  if (place >= 0 && place < listOf(here.key).size) return go(here.key, place);
  return by > 0 ? say("This was the last one of the list") : undefined;
}

async function otherList(by) {
  const place = far.lists.findIndex((list) => list.key === here.key) + by;
  if (place >= 0 && place < far.lists.length) return openList(far.lists[place].key);
  return say(by > 0 ? "This was the last list" : "This is the first list");
}

async function undo() {
  const answer = await post("/api/undo");
  take(answer);
  if (answer.undone === null) return say("Nothing to undo");
  const { list, place, count } = answer.undone;
  say(`Undone: ${counted(count, "sample")}`);
  const stays = list === here.key && here.isGrid;
  return listOf(list) ? go(list, place, count > 1 || stays) : show();
}

function ask(naming) {
  const list = listOf(here.key);
  const number = here.isGrid ? selectedCount() : 1;
  const whom = here.isGrid ? counted(number, "sample") : `sample ${here.place + 1} of ${list.size}`;
  if (!number) return say("Nothing is selected");
  const options = optionsOf({
    likely: here.isGrid ? group.likely : sample.likely,
    unknown: here.isGrid ? null : sample.unknown,
    unknownLabel: about.unknown,
    classes: about.classes,
    newClasses: far.newClasses,
  });
  return openPicker({
    title: naming ? `Name a new class for ${whom}` : `Which class for ${whom}?`,
    options,
    naming,
    // In turn, too: what the server said before must not be shown after what it says to this.
    take: (label) => new Promise((done, fail) => inTurn(() => decide(label).then(done, fail))),
  });
}

function lookCloser() {
  if (here.key === BORDER) return undefined;
  return here.isGrid ? go(here.key, group.tile) : go(here.key, 0, true);
}

function jump() {
  $("place").focus();
  $("place").select();
}

function digit(number) {
  const likely = here.isGrid ? group.likely : sample.likely;
  if (number === 0) return decide(about.unknown);
  return number <= likely.length ? decide(likely[number - 1][0]) : say(`There is no class ${number}`);
}

const KEYS = {
  Enter: () => decide(null),
  k: () => decide(null),
  s: () => step(1),
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  u: undo,
  c: () => ask(false),
  "/": () => ask(false),
  n: () => ask(true),
  // From a single member, too, "g" means its whole group.
  g: async () => {
    if (here.key !== BORDER && !here.isGrid) await go(here.key, 0, true);
    return ask(true);
  },
  o: lookCloser,
  Escape: () => (here.isGrid ? undefined : lookCloser()),
  "[": () => otherList(-1),
  "]": () => otherList(1),
  j: () => (here.isGrid ? undefined : jump()),
  "?": () => $("keys").showModal(),
};

function onClick(id, work) {
  $(id).addEventListener("click", (event) => {
    // After the mouse, Enter means "keep" again, and not this button.
    if (event.detail > 0) $(id).blur();
    inTurn(work);
  });
}

async function refresh() {
  take(await get("/api/summary"));
  await show();
}

async function begin() {
  startPicker();
  await enter();
  const answer = await get("/api/start");
  views.showRun(answer.run, answer.secret);
  for (const name of Object.keys(about)) about[name] = answer[name];
  take(answer);
  if (location.hash.startsWith("#group")) await groupsFound((work) => work());
  const address = readAddress();
  const first = far.lists.find(stillOpen) ?? far.lists[0];
  if (address) await go(address.key, address.place, address.isGrid);
  else await openList(first.key);
  if (far.isGrouping) groupsFound(inTurn).then(() => inTurn(showLists));
  onClick("keep", () => decide(null));
  onClick("choose", () => ask(false));
  onClick("create", () => ask(true));
  onClick("look", lookCloser);
  onClick("skip", () => step(1));
  onClick("undo", undo);
  onClick("back", () => step(-1));
  onClick("next", () => step(1));
  onClick("help", () => $("keys").showModal());
  onClick("more", async () => {
    group.wanted += TILES;
    await show();
  });
  $("jump").addEventListener("submit", (event) => {
    event.preventDefault();
    const place = Number($("place").value) - 1;
    $("place").blur();
    inTurn(() => go(here.key, place));
  });
  listen({ keys: KEYS, asking: "c/ng", digit, undo, inGrid: () => here.isGrid, moveTile });
  window.addEventListener("hashchange", () => {
    const to = readAddress();
    if (to) inTurn(() => go(to.key, to.place, to.isGrid));
  });
  // What another tab decided is shown when one comes back to this one.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !document.querySelector("dialog[open]")) inTurn(refresh);
  });
}

inTurn(begin);
