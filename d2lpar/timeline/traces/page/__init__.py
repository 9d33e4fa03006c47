"""A timeline that one can touch: its data, and the page that shows it anywhere without a kernel."""
