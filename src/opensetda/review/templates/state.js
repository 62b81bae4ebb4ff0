// Where one is and what the server said last; shared by all parts of the page.

import { get } from "./api.js";

export const PAGE = 20;
export const TILES = 60;

export const about = { run: "", size: 0, classes: [], unknown: "unknown", pictures: false };
export const far = {
  decided: 0,
  canUndo: false,
  newClasses: [],
  lists: [],
  isGrouping: false,
  note: "",
  columnsNote: "",
  audit: null,
  useful: null,
  refit: null,
  report: false,
  revision: 0,
  run: "",
};
export const here = { key: "useful", place: 0, isGrid: false };

const pages = new Map();

export const listOf = (key) => far.lists.find((list) => list.key === key);
export const stillOpen = (list) => list.size - list.decided;
// These are looked at one by one; the others are grids, too.
export const isSingle = (list) => ["useful", "audit", "check"].includes(list.kind);
// A grid of a part of the list; what is done to it is done to what is shown.
export const isPaged = (list) => list.kind === "class" || list.kind === "find";
export const isAudit = () => listOf(here.key)?.kind === "audit";
export const isUseful = () => here.key === "useful";
// Searches are not among the lists that one goes through.
export const inOrder = () => far.lists.filter((list) => list.kind !== "find");

const TITLES = { useful: "Most useful", audit: "Audit", alarmed: "Classes to check", border: "Near the threshold", unsure: "Least confident" };

function described(list) {
  const { key } = list;
  if (key in TITLES) return { ...list, kind: ["useful", "audit"].includes(key) ? key : "check", title: TITLES[key] };
  if (key.startsWith("find?")) return { ...list, kind: "find", title: "Search" };
  if (!key.startsWith("class-")) return { ...list, kind: "group", title: `Group ${key}` };
  return { ...list, kind: "class", title: about.classes[Number(key.slice("class-".length))] };
}

export function take(summary) {
  for (const name of Object.keys(far)) far[name] = summary[name];
  far.lists = summary.lists.map(described);
  pages.clear();
}

export async function fetchPage(key, start, count) {
  const name = `${key}/${start}/${count}`;
  if (!pages.has(name)) pages.set(name, await get("/api/list", { key, start, count }));
  return pages.get(name);
}

// Where one is stands in the address, so that a reload leads back to it.
export function readAddress() {
  const text = location.hash.slice(1);
  const cut = text.lastIndexOf("/");
  const key = cut < 0 ? text : text.slice(0, cut);
  return { key, place: cut < 0 ? 0 : Number(text.slice(cut + 1)) - 1, isGrid: cut < 0 };
}

export function writeAddress() {
  const { key, place, isGrid } = here;
  const hash = isGrid ? `#${key}` : `#${key}/${place + 1}`;
  history.replaceState(null, "", location.pathname + hash);
}
