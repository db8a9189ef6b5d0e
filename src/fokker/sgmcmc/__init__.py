"""Samplers whose step uses a gradient of the potential: one file per method."""
