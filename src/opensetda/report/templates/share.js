/* The labels at another share of unknowns: the slider moves the threshold, and nothing else. */

const NEAREST = 6;

/* How a share is written: whole percentages, and that of the run with a decimal. */
function shareText(share) {
  const percent = 100 * share;
  return (Math.abs(percent - Math.round(percent)) < 0.05 ? percent.toFixed(0) : percent.toFixed(1)) + "\u202f%";
}

function countText(number) { return number.toLocaleString("en"); }

/* One target as a card; `label` is the one it would have at the share. */
function shareCard(state, place, label) {
  const samples = state.samples;
  const i = samples.nSource + state.order[place];
  const picture = samples.pictures === null ? null : samples.pictures[i];
  const card = element("li", "sample" + (picture ? "" : " bare"));
  const figure = element("figure");
  if (picture) {
    const image = element("img");
    image.src = picture;
    image.alt = samples.names[i];
    figure.append(image);
  }
  const caption = element("figcaption");
  const path = samples.names[i];
  const whole = path.slice(path.lastIndexOf("/") + 1) || path;
  const file = nameElement(whole, "file");
  file.title = path;
  const given = element("span", "given");
  given.append(element("span", "swatch " + state.styles[label]), nameElement(labelName(samples, label)));
  caption.append(file, given);
  const now = samples.labels[i];
  if (now !== label) {
    const before = element("span", "nearest", "in the run ");
    before.append(nameElement(labelName(samples, now)));
    caption.append(before);
  }
  if (samples.truth !== null && samples.truth[i] !== label) {
    const wrong = Math.min(samples.truth[i], samples.classes.length) !== label;
    const truth = element("span", "truth" + (wrong ? " wrong" : ""), "true class: ");
    truth.append(nameElement(samples.trueClasses[samples.truth[i]]));
    caption.append(truth);
  }
  figure.append(caption);
  card.append(figure);
  return card;
}

function fillNearest(state, position) {
  const border = state.below[position];
  const unknown = state.samples.classes.length;
  const fill = function (id, places, labelAt) {
    const list = byId(id);
    list.replaceChildren.apply(list, places.map(function (place) { return shareCard(state, place, labelAt(place)); }));
    list.classList.toggle("bare", state.samples.pictures === null);
    list.previousElementSibling.hidden = places.length === 0;
  };
  const above = [];
  const below = [];
  for (let step = 0; step < NEAREST; step += 1) {
    if (border + step < state.order.length) { above.push(border + step); }
    if (border - 1 - step >= 0) { below.push(border - 1 - step); }
  }
  fill("share-above", above, function (place) { return state.nearest[place]; });
  fill("share-below", below, function () { return unknown; });
}

function fillCounts(state, position) {
  const now = state.counts[state.used];
  const then = state.counts[position];
  Array.from(byId("share-counts").children).forEach(function (row, place) {
    const label = state.rows[place];
    const change = then[label] - now[label];
    row.querySelector(".count").textContent = countText(then[label]);
    row.querySelector(".change").textContent = change === 0 ? "" : (change > 0 ? "+" : "−") + countText(Math.abs(change));
  });
}

function fillCommand(state, position) {
  const code = byId("share-command");
  if (!code) { return; }
  const share = state.shares[position];
  const whole = Math.abs(100 * share - Math.round(100 * share)) < 1e-6;
  code.querySelector("[data-gap=share]").textContent = share.toFixed(whole ? 2 : 4);
  code.querySelector("[data-gap=percent]").textContent = String(Math.round(100 * share));
}

/* In the histogram, where the threshold would be; scores beyond its ends have no place. */
function moveThreshold(state, position) {
  const line = byId("share-threshold");
  if (!line) { return; }
  const at = state.places[position];
  line.hidden = position === state.used || at === null;
  line.style.left = at + "%";
  line.classList.toggle("flipped", at > 55);
  line.firstElementChild.textContent = "if " + shareText(state.shares[position]);
}

function showShare(state, position) {
  const unknown = state.counts[position].length - 1;
  const count = state.counts[position][unknown];
  const changed = Math.abs(count - state.counts[state.used][unknown]);
  const share = shareText(state.shares[position]) + " unknown";
  const known = countText(state.total - count) + " known, " + countText(count) + " unknown";
  const same = position === state.used ? "as in the run" : countText(changed) + " labelled differently than in the run";
  byId("share-words").replaceChildren(element("strong", "", share), element("span", "", known + " · " + same));
  byId("share-slider").setAttribute("aria-valuetext", share + ": " + known + ", " + same);
  byId("share-back").hidden = position === state.used;
  fillCounts(state, position);
  fillNearest(state, position);
  fillCommand(state, position);
  moveThreshold(state, position);
}

function startShare() {
  const state = JSON.parse(byId("share-data").textContent);
  state.order = numbersOf(state.order);
  state.nearest = numbersOf(state.nearest);
  state.samples = readSamples();
  state.total = state.counts[0].reduce(function (sum, count) { return sum + count; }, 0);
  const slider = byId("share-slider");
  const update = function () { showShare(state, Number(slider.value)); };
  slider.addEventListener("input", update);
  byId("share-back").addEventListener("click", function () {
    slider.value = String(state.used);
    update();
    slider.focus();
  });
  // A browser that restores a form would put the slider elsewhere.
  slider.value = String(state.used);
  update();
}

startShare();
