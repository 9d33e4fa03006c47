"""Processes, pools and what they share, which are threads under emulation."""
