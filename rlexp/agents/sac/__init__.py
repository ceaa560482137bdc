"""SAC: a policy that is drawn from, as random as its entropy's price lets it be, and critics that learn from replay."""
