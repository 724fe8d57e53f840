"""Which sequences run in the next step, and where their keys and values lie."""
