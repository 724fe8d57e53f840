"""Steps by torch, on any device."""
