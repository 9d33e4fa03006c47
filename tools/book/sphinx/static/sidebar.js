// Shows the page's own entry in the sidebar, which is longer than a window.
const sidebar = document.querySelector(".sidebar-scroll");
const entry = sidebar?.querySelector(".current-page");
if (entry) {
  const below = entry.getBoundingClientRect().top - sidebar.getBoundingClientRect().top;
  if (below > 0.9 * sidebar.clientHeight) sidebar.scrollTop += below - sidebar.clientHeight / 3;
}

// Furo's drawers open by labels of boxes that no key reaches.
const first = (drawer) => [...(drawer?.querySelectorAll("a") ?? [])].find((link) => link.checkVisibility());
for (const label of document.querySelectorAll(".nav-overlay-icon, .toc-overlay-icon, .sidebar-tree label")) {
  const box = label.control;
  const drawer = document.querySelector({ __navigation: ".sidebar-drawer", __toc: ".toc-drawer" }[box.id] ?? "nothing");
  const say = () => (label.ariaExpanded = box.checked);
  const toggle = (open) => {
    box.checked = open;
    box.dispatchEvent(new Event("change"));
  };
  label.tabIndex = 0;
  label.role = "button";
  label.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle(!box.checked);
    if (box.checked) first(drawer)?.focus();
  });
  drawer?.addEventListener("keydown", (event) => {
    // A page has two icons for its contents, of which one is shown.
    if (event.key !== "Escape" || !box.checked || !label.checkVisibility()) return;
    toggle(false);
    label.focus();
  });
  box.addEventListener("change", say);
  say();
}
