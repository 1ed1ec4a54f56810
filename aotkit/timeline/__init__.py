"""Where the time and the memory of a first call go: its stages, as text, as a page, as numbers."""

from aotkit.timeline.recording import Timeline, current, stage
from aotkit.timeline.table import in_a_line

__all__ = ["Timeline", "current", "in_a_line", "stage"]
