"""ES and ARS: whole episodes are played with changed weights, and their returns say where the weights go."""
