"""Arithmetic where torch has none for the CPU, or a slow one."""
