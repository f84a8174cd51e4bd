"""The training loop: recipe, schedule, validation, tracking, and checkpoints for resuming a run."""
