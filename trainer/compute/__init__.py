"""Devices, processes and memory that training runs on."""
