"""What isolation costs: ``python -m benchmarks``."""
