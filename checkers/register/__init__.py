"""Linearizable registers: by zones where every value was written once, else by bounded search."""
