"""FLOP, bytes and host time of operators."""
