"""Compares values between ranks or runs and finds the first difference."""
