"""The HTTP API: a module for each route that generates, with its request, its response and its stream."""
