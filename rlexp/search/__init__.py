"""What a sweep does while it runs: which configurations come, which trials go, how all of them stand."""
