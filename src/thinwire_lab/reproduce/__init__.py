"""Reproductions: the comparisons of papers, run again."""
