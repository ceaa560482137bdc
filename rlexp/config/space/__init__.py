"""Expressions in place of one value: grids, samplers and their domains, arithmetic."""
