"""Sliders, typed numbers and predictions: what a reader moves or answers."""
