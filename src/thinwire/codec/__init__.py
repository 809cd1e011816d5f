"""Which elements of a tensor travel, and in how many bits."""
