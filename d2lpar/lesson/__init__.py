"""What several lessons share: data, small networks, exchanges, stored results, short tracebacks."""
