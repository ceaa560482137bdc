"""Bytes between an actor anywhere and the trainer of its task: addresses, messages, windows, queues and boards."""
