"""What `inductor` does around torch's Inductor: decompositions and passes before it, short calls of its code after it."""
