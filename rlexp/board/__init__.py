"""Trials that are joined or trained from anywhere: the servers of boards, and their trainers, actors and clients."""
