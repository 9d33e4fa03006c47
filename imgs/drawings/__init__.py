"""The pictures of the lessons, by subject; each function draws one."""
