"""The quick start of our own Ray: small services, a fork server, and the processes that these two run."""
