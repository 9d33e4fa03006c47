"""The simulated clock, and what work costs on it. No tensor of torch is in here."""
