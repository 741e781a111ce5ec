"""What runs in the process of the user: ask, measure, act."""
