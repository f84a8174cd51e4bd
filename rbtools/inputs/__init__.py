"""What a record names, resolved: its data set, its architecture, its checkpoint."""
