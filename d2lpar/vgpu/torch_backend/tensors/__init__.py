"""The tensor that torch sees, and what it holds."""
