"""The quick start of a Ray of our own: small services, a fork server, and the processes that these two run."""
