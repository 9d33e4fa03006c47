"""The command `d2lpar`."""
