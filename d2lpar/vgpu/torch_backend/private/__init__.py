"""torch's private names, and what its schemas say of operators."""
