"""APPO: IMPALA with PPO's clipped loss, and a target network for its V-trace."""
