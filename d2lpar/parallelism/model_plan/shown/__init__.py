"""What a plan says: as lines, as HTML, and with controls in a notebook."""
