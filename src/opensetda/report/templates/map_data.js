/* What the map shows: decoded once, then asked by what decides the colour. */

/* Fractions are whole numbers up to this. */
const FINEST = 65535;
const SURE_PARTS = 5;
/* After so many colours the shape of the marks changes. */
const COLORS = 10;
const SHAPES = 6;

/* Numbers of two bytes, little endian, as in every browser of today. */
function numbersOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) { bytes[i] = raw.charCodeAt(i); }
  return new Uint16Array(bytes.buffer);
}

let readOnce = null;

function readSamples() {
  if (readOnce !== null) { return readOnce; }
  const data = JSON.parse(byId("map-data").textContent);
  const places = numbersOf(data.places);
  data.labels = numbersOf(data.labels);
  data.confidence = numbersOf(data.confidence);
  data.truth = data.truth === null ? null : numbersOf(data.truth);
  data.x = new Float32Array(data.n);
  data.y = new Float32Array(data.n);
  // y goes up in the data.
  for (let i = 0; i < data.n; i += 1) {
    data.x[i] = places[2 * i] / FINEST;
    data.y[i] = 1 - places[2 * i + 1] / FINEST;
  }
  readOnce = data;
  return data;
}

function labelName(data, label) {
  return label < data.classes.length ? data.classes[label] : data.unknown;
}

function isWrong(data, i) {
  if (data.truth === null || i < data.nSource || data.truth[i] === data.noTruth) { return false; }
  const known = data.classes.length;
  return Math.min(data.truth[i], known) !== data.labels[i];
}

/* Groups of samples by what decides the colour: `entries` for the legend, `of` a group for each. */
function groupsOf(data, mode) {
  const of = new Uint16Array(data.n);
  let entries;
  if (mode === "domain") {
    entries = [{ name: "source", color: "--muted" }, { name: "target", color: "--accent" }];
    for (let i = 0; i < data.n; i += 1) { of[i] = i < data.nSource ? 0 : 1; }
  } else if (mode === "confidence") {
    entries = [];
    for (let part = 0; part < SURE_PARTS; part += 1) {
      const width = 100 / SURE_PARTS;
      entries.push({ name: part * width + " to " + (part + 1) * width + " %", ramp: part / (SURE_PARTS - 1) });
    }
    entries.push({ name: "source samples", color: "--muted" });
    for (let i = 0; i < data.n; i += 1) {
      const part = Math.floor(data.confidence[i] / FINEST * SURE_PARTS);
      of[i] = i < data.nSource ? SURE_PARTS : Math.min(part, SURE_PARTS - 1);
    }
  } else {
    const byTruth = mode === "truth";
    const names = byTruth ? data.trueClasses : data.classes.concat([data.unknown]);
    entries = names.map(function (name, index) {
      const known = index < data.classes.length;
      const shape = known ? Math.floor(index / COLORS) % SHAPES : 0;
      return { name: name, color: known ? "--c" + index % COLORS : "--cu", shape: shape, unknown: !known };
    });
    for (let i = 0; i < data.n; i += 1) { of[i] = byTruth ? data.truth[i] : data.labels[i]; }
  }
  entries.forEach(function (entry) { entry.source = 0; entry.target = 0; });
  for (let i = 0; i < data.n; i += 1) {
    const entry = entries[of[i]];
    if (i < data.nSource) { entry.source += 1; } else { entry.target += 1; }
  }
  return { entries: entries, of: of };
}
