/* The map: its state, and what tests ask of it (window.osdaMap). */

function startMap() {
  const data = readSamples();
  const state = {
    data: data,
    canvas: byId("map-canvas"),
    tip: byId("map-tip"),
    mode: "prediction",
    zoom: 1,
    centre: [0.5, 0.5],
    chosen: null,
    hot: null,
    hidden: new Set(),
    frame: 0,
  };

  /* One drawing a frame, however many events ask for it. */
  state.draw = function () {
    if (state.frame) { return; }
    state.frame = requestAnimationFrame(function () {
      state.frame = 0;
      drawMap(state);
      placeTip(state);
    });
  };
  state.choose = function (i) {
    if (state.chosen === i) { return; }
    state.chosen = i;
    state.draw();
  };
  state.heat = function (index) {
    state.hot = index;
    state.draw();
  };
  state.toggle = function (index) {
    if (state.hidden.has(index)) { state.hidden.delete(index); } else { state.hidden.add(index); }
    shownChanged();
  };
  state.isolate = function (index) {
    const all = state.groups.entries.map(function (entry, place) { return place; });
    state.hidden = new Set(all.filter(function (place) { return place !== index; }));
    shownChanged();
  };

  function shownChanged() {
    if (state.chosen !== null && !isShown(state, state.chosen)) { state.chosen = null; }
    updateLegend(state);
    state.draw();
  }
  function recolor() {
    state.colors = state.groups.entries.map(entryColor);
    state.inkColor = cssColor("--ink");
    state.ringColor = cssColor("--bad");
  }
  function setMode(mode) {
    state.mode = mode;
    state.hidden = new Set();
    state.hot = null;
    byId("map-ringed").hidden = mode !== "truth";
    state.groups = groupsOf(data, mode);
    recolor();
    buildLegend(state);
    state.draw();
  }

  fitCanvas(state);
  setMode(state.mode);
  listenToPointer(state);
  listenToKeys(state);
  byId("map-colour").addEventListener("change", function (event) { setMode(event.target.value); });
  byId("map-all").addEventListener("click", function () {
    state.hidden.clear();
    shownChanged();
  });
  const zoomMiddle = function (factor) { zoomAt(state, factor, state.width / 2, state.height / 2); };
  byId("map-in").addEventListener("click", function () { zoomMiddle(1.6); });
  byId("map-out").addEventListener("click", function () { zoomMiddle(1 / 1.6); });
  byId("map-reset").addEventListener("click", function () { resetView(state); });
  // A browser that restores a form would show another choice.
  byId("map-colour").value = state.mode;
  new ResizeObserver(function () { if (fitCanvas(state)) { state.draw(); } }).observe(state.canvas);
  document.addEventListener("osda-theme", function () { recolor(); updateLegend(state); state.draw(); });

  window.osdaMap = {
    pointCount: function () { return data.n; },
    visibleCount: function () {
      let count = 0;
      for (let i = 0; i < data.n; i += 1) { count += isShown(state, i) ? 1 : 0; }
      return count;
    },
    screenPosition: function (i) { return [screenX(state, data.x[i]), screenY(state, data.y[i])]; },
    chosen: function () { return state.chosen; },
    colourBy: function () { return state.mode; },
    zoom: function () { return state.zoom; },
  };
}

startMap();
