"""Other people's networks, and how their names and weights are recognised."""
