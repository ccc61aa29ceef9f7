"""What the paper's figures imply, against its own figures put together again."""

from __future__ import annotations

import pytest

from utaca.reporting import implied, paper


def test_the_share_gives_the_accuracy_back() -> None:
    for row in paper.tables().detection.values():
        share, low, high = (one / 100 for one in implied.uncertain_share(row))
        assert share * row.recall_n + (1 - share) * row.recall_p == pytest.approx(row.macc)
        assert low < share < high < low + 0.01


def test_gains_at_equal_tokens_by_hand() -> None:
    frame = implied.implied().frame.set_index(["table", "row"])
    row = frame.loc[("long-context test set, Llama-3.1-8B", "UT-ACA K_max=64, Sub.16")]
    # 344 tokens are 0.426 of the doubling from 256 to 512.
    assert row["figure"] == pytest.approx(70.48 - (51.23 + 0.4263 * (72.26 - 51.23)), abs=0.01)
    assert "clipped" in frame.loc[("long-context test set, Qwen2-7B", "UT-ACA K_max=16, Sub.8"), "remark"]


@pytest.mark.parametrize(
    ("score", "fits"), [(14.30, True), (10.70, True), (14.05, False), (26.85, False), (10.09, False)]
)
def test_scores_on_the_grid_of_two_tasks(score: float, fits: bool) -> None:
    possible = {round(100 * found / 1000, 2) for found in range(1001)}
    assert implied.on_grid(score) is fits is (score in possible)
