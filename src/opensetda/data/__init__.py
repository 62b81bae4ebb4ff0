"""Feature tables, class splits and the embedded digits."""
