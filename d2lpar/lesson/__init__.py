"""What several lessons share: data, small networks, exchanges written out, and stored results."""
