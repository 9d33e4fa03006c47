"""What programs ask of devices: choose them, time them, record them, simulate others."""
