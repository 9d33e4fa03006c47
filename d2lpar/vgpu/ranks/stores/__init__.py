"""The key-value stores by which ranks find each other."""
