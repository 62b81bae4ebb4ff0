"""The format of a run: its folder, tables, options, and the methods by name."""
