"""The only place with torch's private names, one file for a part of torch; what differs between versions lives here.

[The table](names.md) says which name is in which version, and where it is used.
"""
