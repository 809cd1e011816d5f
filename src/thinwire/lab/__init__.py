"""Small real networks, real data, and runs that compare recipes: what the command line drives."""
