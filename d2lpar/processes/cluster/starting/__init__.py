"""How the engines start, find each other and end."""
