"""Ranks as real processes, on one clock: that of the conductor, a process beside them."""
