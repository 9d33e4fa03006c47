"""What a process has of its own, for each rank: modules, settings, warnings, the program."""
