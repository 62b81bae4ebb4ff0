"""The `osda` command, one file a command."""
