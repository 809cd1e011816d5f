"""How fast the parts of Thinwire are on this machine, beside what else would do the same work."""
