"""How experience moves: from the workers into replay, from replay to the learner, and weights back."""
