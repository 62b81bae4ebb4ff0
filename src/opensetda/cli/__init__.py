"""The `osda` command."""
