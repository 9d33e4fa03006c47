"""What rows may describe: functions from parameters and a machine to a run, a family a module."""
