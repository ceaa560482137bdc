"""Probes of servers: what can be learnt of one without leaving anything on it."""
