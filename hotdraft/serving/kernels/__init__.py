"""What a layer computes between its products, in one launch each where a GPU allows it."""
