"""The `osda` command, one file per command."""
