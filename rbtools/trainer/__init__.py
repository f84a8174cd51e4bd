"""The training loop: recipe, schedule, validation, tracking, and checkpoints that a later run resumes."""
