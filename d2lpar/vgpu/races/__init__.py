"""What is ordered before what: hazards between streams, and calls that make the host wait."""
