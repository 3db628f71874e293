"""Tests of the node, in rooms as the node has them; what several rooms share lies here."""
