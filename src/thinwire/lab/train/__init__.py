"""One training run of a task: resumable, on simulated workers or on real processes."""
