"""What the agents share that computes with torch: Adam over flat parameters, staging of batches, the allocator."""
