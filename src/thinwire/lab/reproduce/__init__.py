"""The papers' comparisons, run again: plans, their results, and tables beside the papers' own."""
