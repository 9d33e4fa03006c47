// Shows the page's own entry in the sidebar, which is longer than a window.
const sidebar = document.querySelector(".sidebar-scroll");
const entry = sidebar?.querySelector(".current-page");
if (entry) {
  const below = entry.getBoundingClientRect().top - sidebar.getBoundingClientRect().top;
  if (below > 0.9 * sidebar.clientHeight) sidebar.scrollTop += below - sidebar.clientHeight / 3;
}
