"""Training in full over links of given rates and lengths: what a loss costs in time."""
