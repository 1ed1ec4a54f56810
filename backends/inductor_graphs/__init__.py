"""What `inductor` does around torch's Inductor: decompositions and passes before it, short calls after it."""
