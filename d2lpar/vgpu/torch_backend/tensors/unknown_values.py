"""What is assumed, for a while, of values that nobody knows because only shapes are computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Here(threading.local):
    masks_select_all = False
    are_zero = False


_here = _Here()


def select_all() -> bool:
    """Whether masks in this thread select everything; nobody can say what they select otherwise."""
    return _here.masks_select_all


def are_zero() -> bool:
    """Whether numbers that this thread reads are zero; they are NaN otherwise."""
    return _here.are_zero


@contextmanager
def masks_taken_to_select_all(yes: bool) -> Iterator[None]:
    """Let masks in this thread select everything in the block, if `yes`."""
    before, _here.masks_select_all = _here.masks_select_all, yes
    try:
        yield
    finally:
        _here.masks_select_all = before


@contextmanager
def taken_to_be_zero() -> Iterator[None]:
    """Let numbers that this thread reads in the block be zero."""
    before, _here.are_zero = _here.are_zero, True
    try:
        yield
    finally:
        _here.are_zero = before
