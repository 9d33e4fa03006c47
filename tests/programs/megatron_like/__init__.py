"""A package whose state is in a module, and which is run by -m."""
