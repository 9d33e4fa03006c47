"""What ranks call: collectives with their types and order, and the record of who called what."""
