"""Compiled graphs as CUDA graphs: recorded once, then replayed."""
