"""What several rivals share; not a method itself."""
