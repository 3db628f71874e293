"""Cycles of dependencies: the graph, its components, the anomalies in each, and their words."""
