"""TensorBoard's event files from any writer: read completely, fast, and in bounded memory.

The path of a scalar, one module per step: its record is found (``framing``) and decoded, alone (``messages``)
or with thousands of the same form (``shapes``); a file returns its scalars in batches (``event_file``). The files
of a run are read in order, without the points that a restart replaced (``runs``), and what is to be shown of each
tag is kept (``gathering``).
"""
