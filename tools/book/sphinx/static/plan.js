// The page "Does it fit?": shows what was computed before for what the lists say.
"use strict";

const form = document.querySelector("form.plan-choice");
const lists = JSON.parse(form.dataset.lists);
const place = document.querySelector(".model-plan");
const said = document.querySelector("p.plan-said"); // for those who hear the page
const note = document.querySelector("p.plan-note");
const line = document.querySelector(".plan-command");
const command = line.querySelector("input");
const { model, machine, gpus, for: kind, batch } = form.elements;
const all = { model, machine, gpus, for: kind, batch };

// Answers of a model: a script, so that the page also works from a file.
const known = {};
const waiting = {};

window.planAnswers = async (name, packed) => {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  waiting[name](await new Response(stream).json());
};

const answersOf = (name) =>
  (known[name] ??= new Promise((resolve, reject) => {
    waiting[name] = resolve;
    const script = document.createElement("script");
    script.src = `${form.dataset.answers}${encodeURIComponent(name)}.js`;
    script.onerror = () => {
      delete known[name];
      reject(new Error(`The answers for ${name} could not be loaded.`));
    };
    document.head.append(script);
  }));

// Elements

const element = (tag, text, children = []) => {
  const made = document.createElement(tag);
  made.append(text, ...children);
  return made;
};

const barOf = ([name, amount, begin, size, room]) => {
  const bar = element("u", "");
  bar.style.marginLeft = `${begin / 10}%`;
  bar.style.width = `${size / 10}%`;
  const track = element("i", "", [bar]);
  track.ariaHidden = "true";
  const row = element("li", "", [element("span", name), element("b", amount), track]);
  if (room) row.className = "room";
  return row;
};

const sectionOf = ([question, short, above, bars, below]) =>
  element("section", "", [
    element("p", "", [element("strong", question), ` ${short}`]),
    ...above.map((text) => element("p", text)),
    ...(bars.length ? [element("ul", "", bars.map(barOf))] : []),
    ...below.map((text) => element("p", text)),
  ]);

// The choice

const fill = (select, values) => {
  const before = select.value;
  select.replaceChildren(...values.map((value) => element("option", String(value))));
  // What was chosen stays where it can; else all GPUs, and the batch in the middle.
  const usual = select === gpus ? values.at(-1) : values[Math.floor(values.length / 2)];
  select.value = values.map(String).includes(before) ? before : usual;
};

const follow = () => {
  fill(gpus, lists.gpus[machine.value]);
  fill(batch, lists.batch[kind.value]);
};

const chosen = () =>
  Object.fromEntries(Object.entries(all).map(([name, select]) => [name, select.value]));

const show = async () => {
  const choice = chosen();
  const address = `#${new URLSearchParams(choice)}`;
  if (location.hash !== address) history.replaceState(null, "", address);
  try {
    const answers = await answersOf(choice.model);
    if (address !== `#${new URLSearchParams(chosen())}`) return; // changed meanwhile
    const key = [choice.machine, choice.gpus, choice.for, choice.batch].join(" ");
    const [words, parts] = answers[key];
    place.replaceChildren(...parts.map(sectionOf));
    said.textContent = parts.map(([question, short]) => `${question} ${short}`).join(". ");
    command.value = words;
    line.hidden = false;
  } catch (error) {
    place.replaceChildren(element("p", error.message));
    said.textContent = error.message;
    line.hidden = true;
  }
};

// Sets the lists to what the address says; names what they do not have.
const read = () => {
  const asked = new URLSearchParams(location.hash.slice(1));
  const missing = [];
  for (const name of ["model", "machine", "for", "gpus", "batch"]) {
    if (name === "gpus") follow();
    const select = all[name];
    const there = (wanted) => [...select.options].some((option) => option.value === wanted);
    const wanted = asked.get(name) ?? lists.first[name];
    if (!there(wanted) && asked.has(name)) missing.push(`${name} ${wanted}`);
    const value = [wanted, lists.first[name]].find(there);
    if (value) select.value = value;
  }
  note.textContent = missing.length ? `Not among the choices: ${missing.join(", ")}.` : "";
  show();
};

form.addEventListener("change", () => {
  note.textContent = "";
  follow();
  show();
});
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", read);
line.querySelector("button").addEventListener("click", async (event) => {
  command.select();
  // A page from a file, or an old browser, may have no clipboard of this kind.
  const copied = await navigator.clipboard?.writeText(command.value).then(
    () => true,
    () => false,
  );
  const done = copied || document.execCommand("copy");
  event.target.textContent = done ? "Copied" : "Selected";
  setTimeout(() => (event.target.textContent = "Copy"), 2000);
});

form.hidden = false;
read();
