"""The API reference, from the docstrings: a page for each room of the package."""
