/* The legend, and the details of the chosen sample. Names go in as text, never as markup. */

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) { made.className = className; }
  if (text !== undefined) { made.textContent = text; }
  return made;
}

function nameElement(text, className) {
  const made = element("bdi", "name " + (className || ""), text.trim() ? text : "(no name)");
  made.title = text;
  return made;
}

function legendCount(state, entry) {
  if (state.mode === "domain" || entry.name === "source samples") { return entry.source + entry.target; }
  return entry.target;
}

function buildLegend(state) {
  const list = byId("map-legend");
  list.replaceChildren();
  state.rows = state.groups.entries.map(function (entry, index) {
    const row = element("li");
    const button = element("button", "entry");
    button.type = "button";
    const shaped = entry.shape !== undefined && !entry.unknown && state.data.classes.length > COLORS;
    const swatch = element("span", "swatch" + (shaped ? " s" + entry.shape : ""));
    const count = element("span", "count");
    button.append(swatch, nameElement(entry.name), count);
    const only = element("button", "only", "only");
    only.type = "button";
    only.setAttribute("aria-label", "Show only " + entry.name);
    row.append(button, only);
    button.addEventListener("click", function () { state.toggle(index); });
    only.addEventListener("click", function () { state.isolate(index); });
    row.addEventListener("pointerenter", function (event) {
      if (event.pointerType === "mouse") { state.heat(index); }
    });
    row.addEventListener("pointerleave", function () { state.heat(null); });
    list.append(row);
    return { button: button, swatch: swatch, count: count };
  });
  updateLegend(state);
}

function updateLegend(state) {
  state.groups.entries.forEach(function (entry, index) {
    const row = state.rows[index];
    row.swatch.style.setProperty("--fill", state.colors[index]);
    row.count.textContent = legendCount(state, entry).toLocaleString("en");
    row.button.title = entry.name + ": " + entry.source + " of the source, " + entry.target + " targets";
    row.button.setAttribute("aria-pressed", state.hidden.has(index) ? "false" : "true");
  });
  byId("map-all").hidden = state.hidden.size === 0;
}

function percentOf(value) {
  const share = value / FINEST;
  return Math.min(Math.round(100 * share), share < 1 ? 99 : 100) + "\u202f%";
}

function tipRows(state, i) {
  const data = state.data;
  const label = labelName(data, data.labels[i]);
  if (i < data.nSource) { return [["source", label]]; }
  const rows = [["labelled", label], ["confidence", percentOf(data.confidence[i])]];
  if (data.truth !== null) { rows.push(["true class", data.trueClasses[data.truth[i]], isWrong(data, i)]); }
  return rows;
}

function fillTip(state) {
  const data = state.data;
  const i = state.chosen;
  if (state.tipOf === i) { return; }
  state.tipOf = i;
  const body = element("div");
  const name = data.names[i];
  if (name) {
    // The file's own name first; where it lies is for those who look for it.
    const cut = name.lastIndexOf("/") + 1;
    body.append(nameElement(name.slice(cut) || name, "file"));
    if (cut && name.slice(cut)) { body.append(nameElement(name.slice(0, cut), "folder")); }
  }
  const list = element("dl");
  tipRows(state, i).forEach(function (row) {
    const value = element("dd", row[2] ? "off" : "");
    value.append(nameElement(row[1] === undefined ? "" : row[1]));
    list.append(element("dt", "", row[0]), value);
  });
  body.append(list);
  const parts = [body];
  const picture = data.pictures === null ? null : data.pictures[i];
  if (picture) {
    const image = element("img");
    image.alt = "";
    image.src = picture;
    parts.unshift(image);
  }
  state.tip.replaceChildren.apply(state.tip, parts);
}

/* Beside the sample, on the side where there is room, and always within the map. */
function placeTip(state) {
  const tip = state.tip;
  if (state.chosen === null) {
    tip.hidden = true;
    state.tipOf = null;
    return;
  }
  tip.hidden = false;
  fillTip(state);
  const x = screenX(state, state.data.x[state.chosen]);
  const y = screenY(state, state.data.y[state.chosen]);
  const width = tip.offsetWidth;
  const height = tip.offsetHeight;
  const roomAtRight = x + 16 + width <= state.width - 4;
  const roomAtLeft = x - 16 - width >= 4;
  let left = roomAtRight ? x + 16 : x - 16 - width;
  let top = y - height / 2;
  if (!roomAtRight && !roomAtLeft) {
    // Neither: above or below, so that the sample itself stays in sight.
    left = x - width / 2;
    top = y - 18 - height >= 4 ? y - 18 - height : y + 18;
  }
  left = Math.max(4, Math.min(left, state.width - width - 4));
  top = Math.max(4, Math.min(top, state.height - height - 4));
  tip.style.transform = "translate(" + Math.round(left) + "px," + Math.round(top) + "px)";
}
