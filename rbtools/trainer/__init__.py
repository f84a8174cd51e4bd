"""The training loop: recipe, schedule, validation, tracking, and checkpoints from which a later run
resumes."""
