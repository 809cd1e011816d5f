"""The command line: one file per command, with arguments and printing and nothing else."""
