// Small helpers to build the page. All text goes in as text, never as HTML.

export const $ = (id) => document.getElementById(id);

// Controls, formats (zero width, direction), ends of lines and fillers; not what shapes Persian or emoji.
const UNSEEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]/gu;

// Text with what cannot be seen as an escape, such as \u{200b}.
export function visible(text) {
  return text.replace(UNSEEN, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

const shown = (value) => (typeof value === "string" ? visible(value) : value);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.includes("-") || name === "role") element.setAttribute(name, shown(value));
    else element[name] = shown(value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map(shown));
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
  place.textContent = visible(text);
  place.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => place.classList.remove("shown"), 2600);
}

export function showTrouble(text) {
  $("trouble").textContent = visible(text);
  $("trouble").hidden = !text;
}
