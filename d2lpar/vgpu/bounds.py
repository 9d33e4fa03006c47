"""How far the engine goes; known before torch is imported."""

MOST_RANKS = 2**12  # threads of one process: several times as many are all that Linux gives a user
OLDEST_TORCH = (2, 10)  # the first that registers a device backend written in Python
