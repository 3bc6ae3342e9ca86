"""What the README's numbers come from. Each module runs as `python -m benchmarks.NAME`.

Every benchmark compares with a peer in the same run, the two taking turns, and states medians; see
docs/benchmarks.md.
"""
