"""What a program can find out about its own time and memory."""
