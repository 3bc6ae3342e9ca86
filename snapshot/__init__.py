"""The node engine: one tree -> skeleton + pages, and back.

Knows /proc, ptrace, CRIU and (later) GPUs. Knows no network, no store and no other node.
"""
