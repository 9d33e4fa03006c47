// Lets a timeline be touched in the place of its picture, when that is clicked, or Enter pressed on
// it: it has the picture's room, so that slides stay as they were cut.
for (const figure of document.querySelectorAll("figure.timeline-view")) {
  const picture = figure.querySelector("img");
  Object.assign(picture, { tabIndex: 0, role: "button", title: "click to zoom into it" });
  const open = async () => {
    const { offsetHeight, offsetWidth } = picture;
    picture.remove();
    const room = { height: `${offsetHeight}px`, width: `${offsetWidth}px` };
    Object.assign(figure.style, { ...room, overflow: "auto" });
    await show(figure, figure.dataset.packed);
  };
  picture.addEventListener("click", open);
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open();
  });
}
