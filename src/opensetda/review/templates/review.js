// The review: where one is, what is decided, and which key does it.

import { enter, get, inTurn, post } from "./api.js";
import * as audit from "./audit.js";
import { $, counted, say, visible } from "./dom.js";
import { group, groupSamples, moveTile, selectedCount, showGroup } from "./grid.js";
import { listen } from "./keys.js";
import { openPicker, optionsOf, startPicker } from "./picker.js";
import { keyOfForm, showForm } from "./search.js";
import * as useful from "./useful.js";
import * as views from "./views.js";
import {
  PAGE,
  TILES,
  about,
  far,
  fetchPage,
  here,
  inOrder,
  isAudit,
  isPaged,
  isSingle,
  isUseful,
  listOf,
  readAddress,
  stillOpen,
  take,
  writeAddress,
} from "./state.js";

let sample = null;

async function go(key, place = 0, isGrid = false) {
  const list = listOf(key);
  const isOther = key !== here.key;
  if (isOther) group.toggled.clear();
  if (isOther) group.tile = 0;
  else if (!isGrid) group.tile = place - (isPaged(list) ? group.start : 0);
  here.key = key;
  here.place = Math.min(Math.max(place || 0, 0), Math.max(list.size - 1, 0));
  here.isGrid = isGrid && !isSingle(list);
  if (isPaged(list)) group.start = here.place - (here.place % TILES);
  await show();
  if (isOther) window.scrollTo(0, 0);
}

// A list begins with what is still open.
async function openList(key) {
  const list = listOf(key);
  return go(key, list.kind === "group" ? 0 : list.open, !isSingle(list));
}

async function search(key) {
  take(await get("/api/find", { key }));
  return go(key, 0, true);
}

// All is fetched before anything is shown: what is on the page belongs together.
async function show() {
  const list = listOf(here.key);
  const content = here.isGrid ? await groupSamples(list) : list.size && (await nearSamples());
  const isOne = !here.isGrid && list.size > 0;
  writeAddress();
  showLists();
  $("undo").disabled = !far.canUndo;
  $("far").textContent = `${list.decided} of ${list.size} ${isAudit() ? "marked" : "decided"}`;
  $("meter").max = Math.max(list.size, 1);
  $("meter").value = list.decided;
  $("title").textContent = visible(list.title);
  $("about").textContent = aboutList(list);
  $("find").hidden = list.kind !== "find" || isOne;
  if (list.kind === "find") showForm(here.key, [...about.classes, about.unknown, ...far.newClasses]);
  $("one").hidden = $("jump").hidden = !isOne;
  $("group").hidden = !here.isGrid || !list.size;
  $("audit").hidden = $("marks").hidden = !isAudit();
  $("question").hidden = !isAudit() && !isUseful();
  $("useful").hidden = $("bars").hidden = true;
  if (isUseful()) $("useful").hidden = false;
  else $("bars").hidden = false;
  $("asked").textContent = isUseful() ? "Which class is it?" : "Is it of one of these classes?";
  $("label-facts").hidden = isAudit();
  if (isUseful() && far.useful) useful.showUseful(far.useful, about.size);
  useful.showRefit();
  $("where").classList.toggle("single", isOne);
  $("strip").hidden = here.isGrid;
  $("look").hidden = isSingle(list);
  $("look").firstChild.textContent = here.isGrid ? "Look " : "Grid ";
  $("keep").hidden = isAudit();
  $("actions").hidden = !list.size;
  $("actions").classList.toggle("grid", here.isGrid);
  if (here.isGrid && list.size) showGroup(list, content, { decide, look: lookAt, turnPage });
  else if (list.size) showOne(list, content);
  $("main").hidden = false;
}

const lookAt = (tile) => go(here.key, (isPaged(listOf(here.key)) ? group.start : 0) + tile);
const turnPage = (start) => go(here.key, start, true);

function showLists() {
  const open = (key) => inTurn(() => openList(key));
  views.showLists(far, here.key, about.pictures, open, () => inTurn(openSearch));
}

// The lists are found while one looks at the first samples.
async function listsFound(turn) {
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

const ABOUT = {
  useful: "The next sample is the one whose label says most about the others.",
  audit: "Drawn at random from all targets. Is each of a known class, or not?",
  border: "The least clear cases first, from both sides of the threshold in turn.",
  alarmed: "Targets of classes whose labels are probably wrong or missing.",
  unsure: "The least probable labels first.",
  doubt: "Labels that other methods mostly disagree with.",
  class: "What got this label, the least confident first. Deselect what is wrong, and keep the rest.",
  find: "Among all targets.",
  group: "Deselect samples that do not belong here, then name the rest.",
};

function aboutList(list) {
  if (!list.size) return list.kind === "find" ? "Nothing found." : "There are no samples in this list.";
  if (list.name !== null) return `Mostly “${visible(list.name)}”.`;
  if (list.kind === "find") return `${counted(list.size, "sample")} found.`;
  return ABOUT[list.key] ?? ABOUT[list.kind];
}

const nearSamples = () => fetchPage(here.key, here.place - (here.place % PAGE), PAGE);

function showOne(list, page) {
  const place = here.place - page.start;
  const choose = (label) => inTurn(() => decide(label));
  sample = page.samples[place];
  const near = page.samples.slice(Math.max(place - 1, 0), place + 3);
  views.preload(near.filter((one) => one.picture).map((one) => one.row));
  views.showSample(sample, about.unknown, choose);
  views.showColumns($("columns"), sample.columns, far.columnsNote);
  if (isUseful()) {
    useful.showQuestion(sample, {
      choose,
      name: () => inTurn(() => ask(true)),
      more: () => inTurn(() => ask(false)),
    });
    $("decided").hidden = true;
  } else if (isAudit()) {
    audit.showQuestion(about.classes, sample, choose);
    audit.showShare(far.audit);
  }
  views.showStrip(page.marks, here.place, (to) => inTurn(() => go(here.key, to)));
  $("place").value = here.place + 1;
  $("place").max = list.size;
  $("of").textContent = `of ${list.size.toLocaleString("en")}`;
  $("back").disabled = here.place === 0;
  $("next").disabled = here.place === list.size - 1;
  $("keep").firstChild.textContent = "Keep ";
}

// Decide on what is shown, and go on; null: keep.
async function decide(label) {
  if (here.isGrid) return decideGroup(label);
  if (label === null && isAudit()) return say("Say known (K) or unknown (X)");
  const { revision } = far;
  const answer = await change("/api/decide", { row: sample.row, list: here.key, label, revision });
  take(answer);
  say(answer.label === null || answer.label === sample.given ? "Kept" : `Saved: ${answer.label}`);
  return goOn();
}

// What another tab has decided meanwhile is shown instead.
async function change(path, body) {
  try {
    return await post(path, body);
  } catch (error) {
    if (error.message.startsWith("another tab")) await refresh();
    throw error;
  }
}

async function mark(word) {
  if (isUseful()) return word === "unknown" ? decide(about.unknown) : undefined;
  if (!isAudit()) return undefined;
  take(await change("/api/mark", { row: sample.row, mark: word, revision: far.revision }));
  const isDone = !stillOpen(listOf(here.key));
  say(isDone ? `Audit done: ${audit.shareInWords(far.audit)}` : `Marked ${word}`);
  return goOn();
}

async function decideGroup(label) {
  if (!selectedCount()) return say("Nothing is selected");
  const { revision } = far;
  const body = { list: here.key, label, toggled: [...group.toggled], revision };
  if (isPaged(listOf(here.key))) body.window = [group.start, group.start + group.samples.length];
  const answer = await change("/api/decide-group", body);
  take(answer);
  group.toggled.clear();
  const list = listOf(here.key);
  const what = answer.label === null ? "kept" : answer.label;
  const left = stillOpen(list) ? `, ${stillOpen(list)} left in this list` : "";
  say(`${counted(answer.count, "sample")}: ${what}${left}`);
  if (!stillOpen(list)) return list.kind === "find" ? show() : nextOpenList();
  return isPaged(list) ? openList(list.key) : show();
}

async function goOn() {
  const list = listOf(here.key);
  if (isUseful() && stillOpen(list)) return go(here.key, list.open);
  if (!stillOpen(list) && isAudit()) return nextOpenList();
  if (here.place + 1 < list.size) return go(here.key, here.place + 1);
  if (!stillOpen(list)) return nextOpenList();
  return go(here.key, list.open);
}

async function nextOpenList() {
  const keys = inOrder().map((list) => list.key);
  const from = keys.indexOf(here.key);
  const order = [...keys.slice(from + 1), ...keys.slice(0, Math.max(from, 0))];
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
  const lists = inOrder();
  const place = lists.findIndex((list) => list.key === here.key) + by;
  if (place >= 0 && place < lists.length) return openList(lists[place].key);
  return say(by > 0 ? "This was the last list" : "This is the first list");
}

async function undo() {
  const answer = await change("/api/undo", { revision: far.revision });
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
  if (!number || !list.size) return say("Nothing is selected");
  const options = optionsOf({
    likely: here.isGrid ? group.likely : isAudit() ? [] : sample.likely,
    unknown: here.isGrid || isAudit() ? null : sample.unknown,
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
  if (isSingle(listOf(here.key))) return undefined;
  return here.isGrid ? lookAt(group.tile) : go(here.key, here.place, true);
}

function jump() {
  $("place").focus();
  $("place").select();
}

async function openSearch() {
  if (listOf(here.key).kind !== "find" || !here.isGrid) await search("find?order=confidence");
  $("find-text").focus();
}

function digit(number) {
  if (isUseful()) {
    const label = number === 0 ? about.unknown : useful.classesFor(sample)[number - 1];
    return label === undefined ? say(`There is no class ${number}`) : decide(label);
  }
  if (isAudit()) {
    const label = about.classes[number - 1];
    if (number === 0) return mark("unknown");
    return label === undefined ? say(`There is no class ${number}`) : decide(label);
  }
  const likely = here.isGrid ? group.likely : sample.likely;
  if (number === 0) return decide(about.unknown);
  return number <= likely.length ? decide(likely[number - 1][0]) : say(`There is no class ${number}`);
}

const KEYS = {
  Enter: () => decide(null),
  k: () => (isAudit() ? mark("known") : decide(null)),
  x: () => mark("unknown"),
  r: useful.refit,
  s: () => step(1),
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  u: undo,
  c: () => ask(false),
  "/": () => ask(false),
  n: () => ask(true),
  // From a single member, too, "g" means its whole group.
  g: async () => {
    if (!here.isGrid) await lookCloser();
    return ask(true);
  },
  o: lookCloser,
  Escape: () => (here.isGrid ? undefined : lookCloser()),
  "[": () => otherList(-1),
  "]": () => otherList(1),
  j: () => (here.isGrid ? undefined : jump()),
  f: openSearch,
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

// Where the address leads; a search is made anew.
async function followAddress() {
  const { key, place, isGrid } = readAddress();
  if (key.startsWith("find?")) take(await get("/api/find", { key }));
  if (!listOf(key)?.size) return false;
  await go(key, place, isGrid);
  return true;
}

async function begin() {
  startPicker();
  enter();
  const answer = await get("/api/start");
  views.showRun(answer.run);
  for (const name of Object.keys(about)) about[name] = answer[name];
  take(answer);
  const asked = readAddress().key;
  if (asked && !listOf(asked)) await listsFound((work) => work());
  const first = inOrder().find(stillOpen) ?? far.lists[0];
  if (!(asked && (await followAddress()))) await openList(first.key);
  if (far.refit?.state === "running") useful.watch();
  if (far.isGrouping) listsFound(inTurn).then(() => inTurn(show));
  onClick("keep", () => decide(null));
  onClick("known", () => mark("known"));
  onClick("unknown", () => mark("unknown"));
  onClick("choose", () => ask(false));
  onClick("create", () => ask(true));
  onClick("look", lookCloser);
  onClick("skip", () => step(1));
  onClick("refit", useful.refit);
  onClick("finish", useful.finish);
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
  $("find").addEventListener("submit", (event) => {
    event.preventDefault();
    document.activeElement.blur();
    inTurn(() => search(keyOfForm()));
  });
  for (const name of ["label", "state", "order"]) {
    $(`find-${name}`).addEventListener("change", () => inTurn(() => search(keyOfForm())));
  }
  $("go").addEventListener("change", () => {
    const key = $("go").value;
    $("go").blur();
    inTurn(() => (key ? openList(key) : openSearch()));
  });
  listen({ keys: KEYS, asking: "c/ng", digit, undo, inGrid: () => here.isGrid, moveTile });
  window.addEventListener("hashchange", () => inTurn(followAddress));
  // What another tab decided is shown when one comes back to this one.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !document.querySelector("dialog[open]")) inTurn(refresh);
  });
}

inTurn(begin);
