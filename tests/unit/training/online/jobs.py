"""What tests of jobs do to them."""


class StopAfter:
    """Says stop at the n-th time it is asked: thrice before training, then once a step."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


class Meanwhile(StopAfter):
    """Never says stop; does something at the n-th time it is asked."""

    def __init__(self, steps: int, act) -> None:
        super().__init__(steps)
        self.act = act

    def is_set(self) -> bool:
        if super().is_set() and self.act is not None:
            self.act, act = None, self.act
            act()
        return False


def with_distill(config, **values):
    return config.model_copy(update={"distill": config.distill.model_copy(update=values)})
