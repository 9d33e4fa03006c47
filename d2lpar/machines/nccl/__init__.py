"""NCCL, as far as times go: what it runs over, its tables, and what follows from them."""
