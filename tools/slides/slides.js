// Cuts what is higher than a screen into several slides, then starts the show.
"use strict";

const WIDTH = 1280;
const HEIGHT = 720;
const MARGIN = 24; // below the last line
const ROOM = HEIGHT - 90; // for what moves to a slide of its own
const SMALLEST_CODE_PX = 16;
const NOT_CUT = new Set(["TABLE", "P", "IMG", "SVG", "H1", "H2", "H3", "LI", "CODE"]);

const bottom = (element) => element.getBoundingClientRect().bottom;
const isShown = (element) => !element.matches("aside.notes, .continued");

// An empty copy of an element.
function emptied(element) {
  const copy = element.cloneNode(false);
  copy.removeAttribute("id");
  return copy;
}

// Takes from plain text the lines below `limit`; returns them in a copy, or null.
function cutLines(pre, limit, mayTakeAll) {
  const lines = pre.textContent.replace(/\n$/, "").split("\n");
  const box = pre.getBoundingClientRect();
  const kept = Math.floor(((limit - box.top) / box.height) * lines.length) - 1;
  if (pre.childElementCount || kept >= lines.length || (kept < 1 && mayTakeAll)) return null;
  const rest = emptied(pre);
  const ended = lines.map((line) => `${line}\n`);
  pre.textContent = ended.slice(0, Math.max(kept, 1)).join("");
  rest.textContent = ended.slice(Math.max(kept, 1)).join("");
  return rest;
}

// Takes from `element` what lies below `limit`; returns it in a copy of the element, or null.
function cutOff(element, limit, mayTakeAll) {
  if (element.tagName === "PRE") return cutLines(element, limit, mayTakeAll);
  if (NOT_CUT.has(element.tagName.toUpperCase())) return null;
  const children = [...element.children].filter(isShown);
  const first = children.findIndex((child) => bottom(child) > limit);
  if (first < 0) return null;
  const rest = emptied(element);
  const fitsAlone = children[first].getBoundingClientRect().height <= ROOM;
  const moves = first > 0 || mayTakeAll;
  const inner = moves && fitsAlone ? null : cutOff(children[first], limit, moves);
  if (inner) {
    rest.append(inner, ...children.slice(first + 1));
  } else if (first > 0) {
    const from = /^H[1-6]$/.test(children[first - 1].tagName) && first > 1 ? first - 1 : first;
    rest.append(...children.slice(from));
  } else if (mayTakeAll) {
    return null;
  } else {
    rest.append(...children.slice(1));
  }
  if (element.tagName === "OL") rest.start = (element.start || 1) + element.children.length;
  return rest.hasChildNodes() ? rest : null;
}

// A line that says where the reader is, on a slide without a heading of its own.
function label(section, heading) {
  const line = document.createElement("p");
  line.className = "continued";
  line.textContent = heading;
  section.prepend(line);
}

// Cuts a slide until each part fits, or until nothing is left to cut.
function cut(section, heading) {
  const limit = section.getBoundingClientRect().top + HEIGHT - MARGIN;
  const rest = cutOff(section, limit, false);
  if (!rest) return;
  for (let first = rest; first; first = first.firstElementChild) first.classList.remove("fragment");
  section.after(rest);
  label(rest, heading);
  cut(rest, heading);
}

// Makes code that is too wide smaller, as far as it can be read; then breaks its lines.
function narrow(pre) {
  for (let size = parseFloat(getComputedStyle(pre).fontSize); pre.scrollWidth > pre.clientWidth; ) {
    size -= 0.5;
    if (size < SMALLEST_CODE_PX) {
      pre.style.whiteSpace = "pre-wrap";
      return;
    }
    pre.style.fontSize = `${size}px`;
  }
}

function fit() {
  document.body.classList.add("measured");
  document.querySelectorAll(".reveal pre").forEach(narrow);
  let heading = "";
  for (const section of document.querySelectorAll(".slides > section > section")) {
    const own = section.querySelector("h1, h2, h3");
    if (own) heading = own.textContent.trim();
    else label(section, heading);
    cut(section, heading);
  }
  document.body.classList.remove("measured");
}

window.addEventListener("load", () => {
  fit();
  Reveal.initialize({
    width: WIDTH,
    height: HEIGHT,
    margin: 0,
    center: false,
    controls: true,
    hash: true,
    slideNumber: "c/t",
    transition: "none",
    plugins: [RevealNotes],
  });
});
