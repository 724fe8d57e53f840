"""From a validated request to the engine, and from its events to text."""
