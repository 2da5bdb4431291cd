"""The `paceline` command: one file per sub-command."""
