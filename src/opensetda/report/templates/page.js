/* The page itself: theme, copying, where one is in the contents. Without scripts it reads as well. */

const root = document.documentElement;
const darkScreen = window.matchMedia("(prefers-color-scheme: dark)");

function byId(name) { return document.getElementById(name); }

function isDark() {
  const chosen = root.dataset.theme;
  return chosen ? chosen === "dark" : darkScreen.matches;
}

/* A browser may refuse storage to a file: the choice then lasts as long as the page. */
function stored(value) {
  try {
    if (value !== undefined) { sessionStorage.setItem("osda-theme", value); }
    return sessionStorage.getItem("osda-theme");
  } catch (refused) {
    return null;
  }
}

function setTheme(theme) {
  root.dataset.theme = theme;
  document.dispatchEvent(new Event("osda-theme"));
}

function startTheme() {
  const before = stored();
  if (before === "dark" || before === "light") { setTheme(before); }
  const button = document.querySelector(".theme");
  button.addEventListener("click", function () {
    const theme = isDark() ? "light" : "dark";
    stored(theme);
    setTheme(theme);
  });
  darkScreen.addEventListener("change", function () { document.dispatchEvent(new Event("osda-theme")); });
}

function copyFrom(button) {
  const code = button.parentElement.querySelector("code");
  const done = function () {
    button.textContent = "Copied";
    setTimeout(function () { button.textContent = "Copy"; }, 1600);
  };
  const selectIt = function () {
    window.getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(code.textContent).then(done, selectIt);
  } else {
    selectIt();
  }
}

function followContents() {
  const links = Array.from(document.querySelectorAll(".contents a"));
  const sections = links.map(function (link) { return byId(link.hash.slice(1)); });
  const update = function () {
    const line = window.innerHeight * 0.3;
    let current = 0;
    sections.forEach(function (section, index) {
      if (section.getBoundingClientRect().top <= line) { current = index; }
    });
    const atEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 4;
    if (atEnd && window.scrollY > 0) { current = links.length - 1; }
    links.forEach(function (link, index) {
      if (index === current) { link.setAttribute("aria-current", "true"); } else { link.removeAttribute("aria-current"); }
    });
  };
  let waiting = false;
  window.addEventListener("scroll", function () {
    if (waiting) { return; }
    waiting = true;
    requestAnimationFrame(function () { waiting = false; update(); });
  }, { passive: true });
  update();
}

/* On a phone, lists of cards are strips, and long lists scroll: keys must reach those, too. */
function reachScrolling() {
  const watch = new ResizeObserver(function (entries) {
    entries.forEach(function (entry) {
      const list = entry.target;
      const scrolls = list.scrollWidth > list.clientWidth || list.scrollHeight > list.clientHeight + 1;
      if (scrolls) { list.tabIndex = 0; } else { list.removeAttribute("tabindex"); }
    });
  });
  document.querySelectorAll(".samples").forEach(function (list) { watch.observe(list); });
}

document.querySelectorAll("[data-needs-script]").forEach(function (part) { part.hidden = false; });
document.querySelectorAll(".copy").forEach(function (button) {
  button.addEventListener("click", function () { copyFrom(button); });
});
startTheme();
followContents();
reachScrolling();
