"""What was measured beside what was predicted: whole plans, and one step's timeline."""
