"""Programs in processes of their own: a real one for each rank, on the clock of a conductor."""
