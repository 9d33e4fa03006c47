"""The virtual machine in use: clock, memories and streams behind the device."""
