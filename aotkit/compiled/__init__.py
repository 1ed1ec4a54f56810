"""What `compile` returns: functions, methods and modules whose calls run compiled graphs, and what explains them."""
