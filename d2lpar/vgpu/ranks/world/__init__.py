"""Ranks and where they meet: whose turn it is, what a meeting costs, and what hangs."""
