"""A parameter server: it averages pushes of workers into updates, and logs both."""
