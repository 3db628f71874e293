"""What the harness relies on in a system's adapter, as checks that can be run: ``firedrill
conform``. ``suite.py`` names them all.
"""
