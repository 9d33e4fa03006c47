"""Seconds and bytes of a step, part by part."""
