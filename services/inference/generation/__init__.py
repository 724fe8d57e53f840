"""From a validated request to the engine's sequences, and from their events to text."""
