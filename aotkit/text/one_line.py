"""Text of the user's in one line. It needs no torch: what shows graphs that were written as JSON imports it, too."""


def printable(text: str) -> str:
    """`text` without line breaks and control characters, which could move the cursor or forge lines."""
    return "".join(c if c.isprintable() else " " for c in text)
