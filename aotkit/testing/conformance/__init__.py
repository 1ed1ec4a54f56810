"""What every backend and every partitioner has to do, as named requirements, and what runs them.

`suites.py` lists the requirements, `report.py` runs them, `classes.py` makes pytest tests of them.
"""
