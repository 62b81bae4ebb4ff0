/* Pointer, wheel and keys of the map. */

const CELLS = 48;
const MOST_ZOOM = 40;

/* Samples by the cell they are in: the nearest one is found without asking all. */
function cellsOf(state) {
  const data = state.data;
  if (state.cells) { return state.cells; }
  const cells = new Map();
  for (let i = 0; i < data.n; i += 1) {
    const key = cellOf(data.y[i]) * CELLS + cellOf(data.x[i]);
    const cell = cells.get(key);
    if (cell) { cell.push(i); } else { cells.set(key, [i]); }
  }
  state.cells = cells;
  return cells;
}

function cellOf(value) { return Math.max(0, Math.min(CELLS - 1, Math.floor(value * CELLS))); }

function nearestSample(state, left, top, reach) {
  const data = state.data;
  const cells = cellsOf(state);
  let best = null;
  let least = reach * reach;
  const columns = [cellOf(worldX(state, left - reach)), cellOf(worldX(state, left + reach))];
  const rows = [cellOf(worldY(state, top - reach)), cellOf(worldY(state, top + reach))];
  for (let row = rows[0]; row <= rows[1]; row += 1) {
    for (let column = columns[0]; column <= columns[1]; column += 1) {
      for (const i of cells.get(row * CELLS + column) || []) {
        if (!isShown(state, i)) { continue; }
        const dx = screenX(state, data.x[i]) - left;
        const dy = screenY(state, data.y[i]) - top;
        if (dx * dx + dy * dy < least) {
          least = dx * dx + dy * dy;
          best = i;
        }
      }
    }
  }
  return best;
}

/* The nearest sample in a direction, within a quarter turn; from the middle if none is chosen. */
function neighbour(state, direction) {
  const data = state.data;
  const start = state.chosen === null
    ? [state.width / 2, state.height / 2]
    : [screenX(state, data.x[state.chosen]), screenY(state, data.y[state.chosen])];
  let best = state.chosen;
  let least = Infinity;
  for (let i = 0; i < data.n; i += 1) {
    if (i === state.chosen || !isShown(state, i)) { continue; }
    const dx = screenX(state, data.x[i]) - start[0];
    const dy = screenY(state, data.y[i]) - start[1];
    const along = dx * direction[0] + dy * direction[1];
    const across = Math.abs(dx * direction[1] - dy * direction[0]);
    const cost = state.chosen === null ? Math.hypot(dx, dy) : along + 2 * across;
    if (state.chosen !== null && (along < 0.5 || across > along)) { continue; }
    if (cost < least) {
      least = cost;
      best = i;
    }
  }
  return best;
}

function clampView(state) {
  state.zoom = Math.max(1, Math.min(MOST_ZOOM, state.zoom));
  const half = 0.5 / state.zoom;
  state.centre = state.centre.map(function (value) { return Math.max(half, Math.min(1 - half, value)); });
  state.canvas.classList.toggle("zoomed", state.zoom > 1.001);
}

/* Zoom so that what is at a place of the screen stays there. */
function zoomAt(state, factor, left, top) {
  const x = worldX(state, left);
  const y = worldY(state, top);
  state.zoom = Math.max(1, Math.min(MOST_ZOOM, state.zoom * factor));
  state.centre = [
    x - (left - state.width / 2) / (state.unit[0] * state.zoom),
    y - (top - state.height / 2) / (state.unit[1] * state.zoom),
  ];
  clampView(state);
  state.draw();
}

function moveBy(state, dx, dy) {
  state.centre = [
    state.centre[0] - dx / (state.unit[0] * state.zoom),
    state.centre[1] - dy / (state.unit[1] * state.zoom),
  ];
  clampView(state);
  state.draw();
}

function resetView(state) {
  state.zoom = 1;
  state.centre = [0.5, 0.5];
  clampView(state);
  state.draw();
}

/* Keep a sample that keys have led to within the map. */
function bringIntoView(state, i) {
  const x = screenX(state, state.data.x[i]);
  const y = screenY(state, state.data.y[i]);
  const edge = 30;
  const dx = x < edge ? edge - x : Math.min(0, state.width - edge - x);
  const dy = y < edge ? edge - y : Math.min(0, state.height - edge - y);
  if (dx || dy) { moveBy(state, dx, dy); }
}

function listenToPointer(state) {
  const canvas = state.canvas;
  const fingers = new Map();
  let moved = 0;
  const placeOf = function (event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left - canvas.clientLeft, event.clientY - box.top - canvas.clientTop];
  };
  const spread = function () {
    const two = Array.from(fingers.values());
    return {
      length: Math.hypot(two[0][0] - two[1][0], two[0][1] - two[1][1]),
      middle: [(two[0][0] + two[1][0]) / 2, (two[0][1] + two[1][1]) / 2],
    };
  };
  canvas.addEventListener("pointerdown", function (event) {
    fingers.set(event.pointerId, placeOf(event));
    moved = 0;
    if (event.pointerType === "mouse") { canvas.setPointerCapture(event.pointerId); }
  });
  canvas.addEventListener("pointermove", function (event) {
    const place = placeOf(event);
    const before = fingers.get(event.pointerId);
    if (before === undefined) {
      if (event.pointerType === "mouse") { state.choose(nearestSample(state, place[0], place[1], 14)); }
      return;
    }
    moved += Math.abs(place[0] - before[0]) + Math.abs(place[1] - before[1]);
    if (fingers.size === 2) {
      const old = spread();
      fingers.set(event.pointerId, place);
      const now = spread();
      if (old.length > 0) { zoomAt(state, now.length / old.length, now.middle[0], now.middle[1]); }
      moveBy(state, now.middle[0] - old.middle[0], now.middle[1] - old.middle[1]);
      return;
    }
    fingers.set(event.pointerId, place);
    if (state.zoom > 1.001 && moved > 3) { moveBy(state, place[0] - before[0], place[1] - before[1]); }
  });
  const lift = function (event) {
    const place = placeOf(event);
    const tapped = event.type === "pointerup" && fingers.size === 1 && moved < 8;
    fingers.delete(event.pointerId);
    if (tapped) { state.choose(nearestSample(state, place[0], place[1], event.pointerType === "mouse" ? 14 : 24)); }
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", function (event) {
    if (event.pointerType === "mouse" && !fingers.size) { state.choose(null); }
  });
  canvas.addEventListener("dblclick", function () { resetView(state); });
  canvas.addEventListener("wheel", function (event) {
    // The page goes on scrolling over a map nobody has turned to, or that shows all already.
    const meant = document.activeElement === canvas || event.ctrlKey || event.metaKey;
    if (!meant || (state.zoom <= 1 && event.deltaY > 0 && !event.ctrlKey)) { return; }
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const place = placeOf(event);
    zoomAt(state, Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0022)), place[0], place[1]);
  }, { passive: false });
}

function listenToKeys(state) {
  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  state.canvas.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    const middle = [state.width / 2, state.height / 2];
    if (directions[event.key]) {
      const next = neighbour(state, directions[event.key]);
      if (next !== null) {
        state.choose(next);
        bringIntoView(state, next);
      }
    } else if (event.key === "+" || event.key === "=") {
      zoomAt(state, 1.5, middle[0], middle[1]);
    } else if (event.key === "-") {
      zoomAt(state, 1 / 1.5, middle[0], middle[1]);
    } else if (event.key === "0") {
      resetView(state);
    } else if (event.key === "Escape") {
      state.choose(null);
    } else {
      return;
    }
    event.preventDefault();
  });
  state.canvas.addEventListener("blur", function () { state.choose(null); });
}
