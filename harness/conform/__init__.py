"""The rules that the harness relies on in a system's adapter, as runnable checks: ``firedrill
conform``. ``suite.py`` names them all.
"""
