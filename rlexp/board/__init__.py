"""Trials that are joined or trained from anywhere: boards' servers, and what trainers, actors and clients do there."""
