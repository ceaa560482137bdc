import pytest

from rlexp.optimizers.pacing import Pacing


def test_nobody_waits_without_an_intensity() -> None:
    pacing = Pacing(None, batch_rows=10)
    pacing.begin(100, 0)
    assert pacing.may_train(100, 10**6, batches_on_their_way=50)
    assert pacing.may_sample(10**6, 0)
    assert not pacing.holds


def test_nobody_waits_before_the_learner_begins() -> None:
    pacing = Pacing(4.0, batch_rows=10)
    assert pacing.may_sample(10**6, 0)
    assert pacing.may_train(0, 10**6, batches_on_their_way=3)


def test_counts_from_where_the_learner_began() -> None:
    pacing = Pacing(4.0, batch_rows=10)
    pacing.begin(1000, 500)
    pacing.begin(9999, 9999)
    # 25 steps are worth 100 rows, 10 batches; 30 rows of them were trained.
    assert pacing.owed(1025, 530) == pytest.approx(7.0)


def test_a_side_waits_once_it_is_a_batch_ahead() -> None:
    pacing = Pacing(2.0, batch_rows=10)
    pacing.begin(0, 0)
    assert pacing.may_sample(4, 0)
    assert not pacing.may_sample(5, 0)
    assert pacing.may_train(0, 9, batches_on_their_way=0)
    assert not pacing.may_train(0, 10, batches_on_their_way=0)
    assert not pacing.may_train(0, 0, batches_on_their_way=1)


@pytest.mark.parametrize("sampled", range(0, 60, 7))
@pytest.mark.parametrize("trained", range(0, 60, 7))
def test_both_sides_never_wait(sampled: int, trained: int) -> None:
    pacing = Pacing(1.5, batch_rows=8)
    pacing.begin(0, 0)
    assert pacing.may_sample(sampled, trained) or pacing.may_train(sampled, trained, batches_on_their_way=0)
