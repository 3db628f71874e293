"""The promise of a bank: transfers move money, nothing makes or destroys it."""
