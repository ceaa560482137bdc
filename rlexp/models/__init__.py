"""Networks: torsos and the heads that agents put on them, in torch.nn, and in NumPy for acting."""
