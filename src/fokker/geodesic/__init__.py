"""Samplers on manifolds whose geodesic flow is known (Liu, Zhu & Song 2016), and their relatives."""
