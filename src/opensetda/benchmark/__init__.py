"""Many methods on many tasks: one grid, one evaluator, one table."""
