"""What processes of one machine share without sending it: segments of anonymous memory, and the weights in one."""
