"""The evaluation loop: batches, an outcome for each example, and the entries made from outcomes."""
