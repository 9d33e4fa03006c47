"""Timelines as files: traces for other programs, and a page to look at."""
