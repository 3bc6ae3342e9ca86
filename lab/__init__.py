"""A virtual cluster on one machine: network namespaces as nodes, with links that can be cut.

Knows no job and no snapshot. Agents are started as programs.
"""
