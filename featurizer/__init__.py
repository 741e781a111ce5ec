"""Graph to numbers: the wire format, node vectors, and the simulation of what lives when."""
