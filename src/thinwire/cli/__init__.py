"""The command line: one file for each command, with its arguments and output alone."""
