"""What watches over a training: asks before each compile, acts on the answer, and takes it back."""
