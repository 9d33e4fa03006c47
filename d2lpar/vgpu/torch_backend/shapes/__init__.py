"""Operators whose values are not worked out: shapes alone."""
