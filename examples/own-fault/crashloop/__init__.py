"""A kind of fault: programs that are killed again while they recover."""
