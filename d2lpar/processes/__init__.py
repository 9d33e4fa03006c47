"""Real processes as ranks: who they are, how they start, what they send, what they save."""
