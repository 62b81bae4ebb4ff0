// Small helpers to build the page. All text goes in as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const kbd = (text) => make("kbd", { textContent: text });

export function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 1) return "<1 %";
  return value > 99 && value < 100 ? ">99 %" : `${Math.round(value)} %`;
}

export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

let fading = 0;

export function say(text) {
  const place = $("said");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => place.classList.remove("shown"), 2600);
}

export function showTrouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}
