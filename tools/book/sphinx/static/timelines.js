// Shows timelines that one can touch in the place of their pictures.
import { show } from "./view.js";

for (const figure of document.querySelectorAll("figure.timeline-view")) {
  const picture = figure.querySelector("img");
  show(figure, figure.dataset.packed).then(() => picture.remove());
}
