"""Carriers, one file for each kind of queue; a client library is imported only in its own file."""
