"""The course as a site: its pages, made from what the notebooks store."""
