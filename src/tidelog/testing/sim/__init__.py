"""The deterministic world: a clock and a disk that do exactly what a seed says."""
