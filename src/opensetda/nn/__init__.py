"""What the networks of PGL and its rivals share."""
