"""The evaluation loop: tasks, batches, outcomes for each example, and the entries made from them."""
