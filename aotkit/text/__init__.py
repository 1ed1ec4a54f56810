"""Text without torch: tables, and names and paths in it."""
