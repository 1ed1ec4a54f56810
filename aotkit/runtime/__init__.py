"""Compiled graphs at run time: the calls of what plug-ins return, and what these launch."""
