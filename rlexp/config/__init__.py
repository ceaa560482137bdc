"""All that a user may write in an experiment file, and nothing that runs: needs pydantic and PyYAML only.

The way of a file: ``yaml_file`` (text to nodes that know their place) → ``assembly`` (RLlib's names to ours, each key
where it belongs, overrides, the defaults of the file's age) → ``search_space`` (the corners of a grid) → ``corner``
(RLlib's values to ours, the models) → ``load`` (the plan).
"""
