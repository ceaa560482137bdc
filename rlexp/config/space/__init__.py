"""What can be written in place of one value: grids, samplers and their domains, arithmetic."""
