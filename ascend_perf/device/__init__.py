"""Peaks of known devices and rooflines."""
