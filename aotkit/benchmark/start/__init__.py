"""`bench start`: what the first step costs, in a fresh process with empty and with full caches."""
