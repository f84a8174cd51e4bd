"""Other people's networks: recognises their names and weights, and builds the networks."""
