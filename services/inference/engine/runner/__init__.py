"""What runs a step of the model: compiled code on a CPU, torch on a GPU."""
