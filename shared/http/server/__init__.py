"""The HTTP server: connections, processes, logging, and an orderly end."""
