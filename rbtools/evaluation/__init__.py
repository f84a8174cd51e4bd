"""The evaluation loop: tasks, batches, one outcome for each example, and the entries made from the
outcomes."""
