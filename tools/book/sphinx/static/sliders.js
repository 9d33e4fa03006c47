// Figures with sliders, drawn before: shows the picture of where the controls stand.
"use strict";

for (const figure of document.querySelectorAll("figure.drawn-before")) {
  const pictures = JSON.parse(figure.dataset.pictures);
  const image = figure.querySelector("img");
  const controls = [...figure.querySelectorAll("input, select")];
  const chosen = () => pictures[controls.map((control) => control.value).join(" ")];

  const show = (moved) => {
    if (!chosen()) {
      // Only one slider at a time has pictures.
      for (const other of controls) {
        if (other !== moved && other.type === "range") other.value = other.dataset.start;
      }
    }
    for (const control of controls.filter((control) => control.type === "range")) {
      const text = JSON.parse(control.dataset.options)[control.value];
      control.setAttribute("aria-valuetext", text);
      control.parentElement.querySelector("output").textContent = text;
    }
    Object.assign(image, chosen());
  };

  for (const control of controls) control.addEventListener("input", () => show(control));
  figure.querySelector(".controls").hidden = false;
  // A browser that comes back to the page may keep what the controls said.
  show(null);
}
