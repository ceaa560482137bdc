"""How transitions move from the workers into replay and on to the learner, and weights back."""
