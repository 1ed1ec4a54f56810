"""Timing and the workloads to time."""
