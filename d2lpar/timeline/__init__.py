"""Timelines: spans of work, what they add up to, and their traces for tools of others; no torch."""

from .spans import MemorySample, Span
from .timeline import MEASURED, Timeline

__all__ = ["MEASURED", "MemorySample", "Span", "Timeline"]
