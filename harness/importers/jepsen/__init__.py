"""Histories recorded by Jepsen, as the tables that checkers take: ``importing`` is the way in."""
