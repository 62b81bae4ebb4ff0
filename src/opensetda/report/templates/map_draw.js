/* Drawing the map on its canvas. Marks of one colour are one path: thousands are quick that way. */

const PADDING = 18;
const MOST_STRETCH = 1.3;
const HALFWAY = [172, 156, 130];

function cssColor(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }

function partsOf(hex) { return [1, 3, 5].map(function (place) { return parseInt(hex.slice(place, place + 2), 16); }); }

/* From orange, low, to blue, high confidence: safe for colour-blind readers. */
function rampColor(share) {
  const end = partsOf(cssColor(share < 0.5 ? "--c1" : "--c0"));
  const part = Math.abs(2 * share - 1);
  const mixed = end.map(function (value, index) { return Math.round(HALFWAY[index] + (value - HALFWAY[index]) * part); });
  return "rgb(" + mixed.join(",") + ")";
}

function entryColor(entry) { return entry.ramp === undefined ? cssColor(entry.color) : rampColor(entry.ramp); }

/* Fit the canvas to its box and the screen's pixels; returns whether that changed anything. */
function fitCanvas(state) {
  const canvas = state.canvas;
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (state.width === width && state.height === height && state.ratio === ratio) { return false; }
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  state.width = width;
  state.height = height;
  state.ratio = ratio;
  // A long map may be stretched a little to use its box; distances are rough anyway.
  const inner = [Math.max(width - 2 * PADDING, 10), Math.max(height - 2 * PADDING, 10)];
  const shorter = Math.min(inner[0], inner[1]);
  state.unit = inner.map(function (length) { return Math.min(length, shorter * MOST_STRETCH); });
  return true;
}

function screenX(state, x) { return (x - state.centre[0]) * state.unit[0] * state.zoom + state.width / 2; }
function screenY(state, y) { return (y - state.centre[1]) * state.unit[1] * state.zoom + state.height / 2; }
function worldX(state, left) { return (left - state.width / 2) / (state.unit[0] * state.zoom) + state.centre[0]; }
function worldY(state, top) { return (top - state.height / 2) / (state.unit[1] * state.zoom) + state.centre[1]; }

function isShown(state, i) { return !state.hidden.has(state.groups.of[i]); }

function markSize(state) {
  const n = state.data.n;
  const size = n > 4000 ? 2.9 : n > 1500 ? 3.4 : n > 500 ? 4.1 : 5;
  const narrow = state.width < 500 ? 0.85 : 1;
  return size * narrow * Math.min(Math.pow(state.zoom, 0.4), 2.4);
}

function addCircle(path, x, y, size) {
  path.moveTo(x + size, y);
  path.arc(x, y, size, 0, 2 * Math.PI);
}

/* Corners of the marks of targets; the style sheet has the same shapes, in the same order. */
const CORNERS = [
  [0, -1.25, 1.1, 0.8, -1.1, 0.8],
  [-0.9, -0.9, 0.9, -0.9, 0.9, 0.9, -0.9, 0.9],
  [0, -1.3, 1.15, 0, 0, 1.3, -1.15, 0],
  [-1.1, -0.8, 1.1, -0.8, 0, 1.25],
  [-0.4, -1.2, 0.4, -1.2, 0.4, -0.4, 1.2, -0.4, 1.2, 0.4, 0.4, 0.4, 0.4, 1.2, -0.4, 1.2, -0.4, 0.4, -1.2, 0.4, -1.2, -0.4, -0.4, -0.4],
  [-0.6, -1.05, 0.6, -1.05, 1.2, 0, 0.6, 1.05, -0.6, 1.05, -1.2, 0],
];

/* Marks of sources are hollow: of the first shape circles, of the others the same as those of targets. */
function addMark(path, shape, isSource, x, y, size) {
  if (isSource && !shape) { addCircle(path, x, y, size * 0.95); return; }
  const corners = CORNERS[shape || 0];
  for (let at = 0; at < corners.length; at += 2) {
    const left = x + corners[at] * size;
    const top = y + corners[at + 1] * size;
    if (at === 0) { path.moveTo(left, top); } else { path.lineTo(left, top); }
  }
  path.closePath();
}

function pathsOf(state, size) {
  const data = state.data;
  const paths = state.groups.entries.map(function () { return { source: new Path2D(), target: new Path2D() }; });
  const rings = new Path2D();
  const ringed = state.mode === "truth";
  for (let i = 0; i < data.n; i += 1) {
    if (!isShown(state, i)) { continue; }
    const x = screenX(state, data.x[i]);
    const y = screenY(state, data.y[i]);
    if (x < -9 || y < -9 || x > state.width + 9 || y > state.height + 9) { continue; }
    const group = state.groups.of[i];
    const isSource = i < data.nSource;
    const path = isSource ? paths[group].source : paths[group].target;
    addMark(path, state.groups.entries[group].shape, isSource, x, y, size);
    if (ringed && isWrong(data, i)) { addCircle(rings, x, y, size + 2.6); }
  }
  return { paths: paths, rings: rings };
}

function drawMap(state) {
  fitCanvas(state);
  const context = state.canvas.getContext("2d");
  context.setTransform(state.ratio, 0, 0, state.ratio, 0, 0);
  context.clearRect(0, 0, state.width, state.height);
  const size = markSize(state);
  const made = pathsOf(state, size);
  const entries = state.groups.entries;
  const faded = function (index, alpha) { return state.hot === null || state.hot === index ? alpha : 0.12; };
  const fill = function (index, alpha) {
    context.globalAlpha = faded(index, alpha);
    context.fillStyle = state.colors[index];
    context.fill(made.paths[index].target);
  };
  // Unknown targets below all others: they are many, and spread out.
  entries.forEach(function (entry, index) { if (entry.unknown) { fill(index, 0.68); } });
  context.lineWidth = 1.3;
  entries.forEach(function (entry, index) {
    context.globalAlpha = faded(index, state.mode === "confidence" ? 0.5 : 0.85);
    context.strokeStyle = state.colors[index];
    context.stroke(made.paths[index].source);
  });
  entries.forEach(function (entry, index) { if (!entry.unknown) { fill(index, 0.9); } });
  context.globalAlpha = state.hot === null ? 1 : 0.25;
  context.lineWidth = 1.4;
  context.strokeStyle = state.ringColor;
  context.stroke(made.rings);
  context.globalAlpha = 1;
  if (state.chosen !== null) { drawChosen(state, context, size); }
}

function drawChosen(state, context, size) {
  const i = state.chosen;
  const x = screenX(state, state.data.x[i]);
  const y = screenY(state, state.data.y[i]);
  const mark = new Path2D();
  const shape = state.groups.entries[state.groups.of[i]].shape;
  addMark(mark, shape, i < state.data.nSource, x, y, size * 1.6);
  context.fillStyle = state.colors[state.groups.of[i]];
  context.fill(mark);
  context.lineWidth = 2;
  context.strokeStyle = state.inkColor;
  context.stroke(mark);
  const ring = new Path2D();
  addCircle(ring, x, y, size * 1.6 + 5);
  context.stroke(ring);
}
