"""The model on the CPU: compiled steps over packed weights, in which no row depends on another."""
