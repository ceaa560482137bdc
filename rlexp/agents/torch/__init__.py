"""What agents share in torch: Adam over flat parameters, staging of batches, the memory allocator."""
