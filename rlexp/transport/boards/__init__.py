"""Boards, one file for each kind of server; a client library is imported only in its own file."""
