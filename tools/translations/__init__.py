"""The course in other languages: English notebooks, a gettext catalogue beside each, and what they
come to."""
