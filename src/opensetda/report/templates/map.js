/* The map: its state, the steps, and what tests ask of it (window.osdaMap). */

const MOVE_TIME = 650;
const REST_TIME = 450;
const PLAY_ICON = "M5 3.2v13.6L16.5 10z";
const PAUSE_ICON = "M4.5 3.5h4v13h-4zM11.5 3.5h4v13h-4z";

function startMap() {
  const data = readSamples();
  const state = {
    data: data,
    canvas: byId("map-canvas"),
    tip: byId("map-tip"),
    mode: "prediction",
    time: data.kept,
    step: data.kept,
    zoom: 1,
    centre: [0.5, 0.5],
    chosen: null,
    hot: null,
    hidden: new Set(),
    playing: false,
    frame: 0,
    move: 0,
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
  function regroup(rebuild) {
    state.groups = groupsOf(data, state.mode, state.step);
    recolor();
    if (rebuild) { buildLegend(state); } else { shownChanged(); }
    state.draw();
  }

  function setTime(time) {
    state.time = time;
    settle(data, time);
    const step = Math.round(time);
    if (step !== state.step) {
      state.step = step;
      tellStep();
      regroup(false);
    }
    state.draw();
  }
  function tellStep() {
    const words = byId("map-step-words");
    if (!words) { return; }
    const number = data.steps[state.step];
    words.textContent = "step " + number + (state.step === data.kept ? " · kept" : "");
    byId("map-step").setAttribute("aria-valuetext", words.textContent);
  }

  /* Go to a step, smoothly if samples move and nobody minds motion; `then` comes after. */
  function goTo(goal, then) {
    cancelAnimationFrame(state.move);
    const start = state.time;
    const began = performance.now();
    const still = lessMotion.matches || !data.moves;
    const next = function (now) {
      const part = still ? 1 : Math.min(1, Math.max(0, (now - began) / MOVE_TIME));
      const eased = part < 0.5 ? 2 * part * part : 1 - 2 * (1 - part) * (1 - part);
      setTime(part === 1 ? goal : start + (goal - start) * eased);
      if (part < 1) { state.move = requestAnimationFrame(next); } else if (then) { then(); }
    };
    if (still) { next(began); } else { state.move = requestAnimationFrame(next); }
  }

  function play(on) {
    state.playing = on;
    clearTimeout(state.rest);
    byId("map-play").setAttribute("aria-label", on ? "Pause" : "Play the steps");
    byId("map-play-icon").setAttribute("d", on ? PAUSE_ICON : PLAY_ICON);
    if (!on) { return; }
    const last = data.steps.length - 1;
    if (Math.round(state.time) >= last) { setTime(0); }
    const onward = function () {
      const next = Math.min(Math.floor(state.time + 1e-6) + 1, last);
      byId("map-step").value = String(next);
      goTo(next, function () {
        if (next === last) { play(false); return; }
        state.rest = setTimeout(onward, REST_TIME);
      });
    };
    byId("map-step").value = String(Math.round(state.time));
    state.rest = setTimeout(onward, REST_TIME);
  }

  function setMode(mode) {
    state.mode = mode;
    state.hidden = new Set();
    state.hot = null;
    byId("map-ringed").hidden = mode !== "truth";
    regroup(true);
  }

  settle(data, state.time);
  fitCanvas(state);
  regroup(true);
  tellStep();
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
  if (data.steps.length > 1) {
    byId("map-play").addEventListener("click", function () { play(!state.playing); });
    byId("map-step").addEventListener("input", function (event) {
      if (state.playing) { play(false); }
      goTo(Number(event.target.value));
    });
    // A browser that restores a form puts the slider elsewhere than the map is.
    byId("map-step").value = String(state.step);
  }
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
    step: function () { return state.step; },
    time: function () { return state.time; },
    setStep: function (step) {
      if (byId("map-step")) { byId("map-step").value = String(step); }
      goTo(step);
    },
    screenPosition: function (i) { return [screenX(state, data.x[i]), screenY(state, data.y[i])]; },
    chosen: function () { return state.chosen; },
    colourBy: function () { return state.mode; },
    zoom: function () { return state.zoom; },
  };
}

if (byId("map-data")) { startMap(); }
