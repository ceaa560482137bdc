"""What rollout workers send, where a test knows which of its forms it has."""

from rlexp.sample_batch import SampleBatch, SentRows


def whole(sent: SentRows) -> SampleBatch:
    """Return rows that were sent with whole observations; AssertionError where they were not."""
    assert isinstance(sent, SampleBatch)
    return sent
