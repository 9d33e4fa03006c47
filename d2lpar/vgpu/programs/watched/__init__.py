"""What is watched while a program runs: devices, steps, loaders."""
