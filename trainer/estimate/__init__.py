"""What a run will take: parameters, operations, memory, time. Known before it starts."""
