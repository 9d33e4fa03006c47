"""Functions of torch and Python that answer for the rank that calls them."""
