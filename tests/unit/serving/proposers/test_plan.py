from hotdraft.serving.proposers.plan import ProposalPlan


def test_a_row_without_drafts_has_nothing_beside_them_and_saves_nothing() -> None:
    plan = ProposalPlan([(1, 2), (), ()], [3, 2, 1], alternatives=[4, 3, 2], saved=[0.5, 0.25, 0.125])
    left = plan.without_drafts({0, 2})
    assert (left.guesses, left.drafted, left.alternatives) == (plan.guesses, [0, 2, 0], [0, 3, 0])
    assert left.saved == [0, 0.25, 0]
    assert ProposalPlan([()], [3]).without_drafts({0}) == ProposalPlan([()], [0])
