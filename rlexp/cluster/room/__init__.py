"""What this machine or a cluster offers, whether trials fit it, and how to make them fit."""
