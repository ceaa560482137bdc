"""Everything that a user may write in an experiment file, and nothing that runs. Needs only pydantic and PyYAML.

The stages of a file: ``yaml`` (text to nodes with their positions) → ``assembly`` (RLlib's names to ours, each key
where it belongs, overrides, the defaults of the file's age) → ``variants`` (the points of its grid: RLlib's values to
ours, the models) → ``parsed_experiment`` → ``plan`` (the trials). ``load`` calls these in turn, and reports every error
at once.
"""
