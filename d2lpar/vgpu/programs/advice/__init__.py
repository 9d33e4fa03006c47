"""What a run waits for, and what would help: each is simulated by replaying what was recorded."""
