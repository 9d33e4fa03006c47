"""Attention: which kernel torch chooses, and what it computes."""
