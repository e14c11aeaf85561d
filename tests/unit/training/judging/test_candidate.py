import torch

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.judging.candidate import blend, copy_trainable


def test_a_share_of_the_way_of_every_trained_parameter(make_llama):
    model = build_lora(make_llama(0), LoraSection(rank=2, alpha=4), "none")
    start = copy_trainable(model)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += torch.randn_like(parameter)
    end = copy_trainable(model)
    assert start.keys() == end.keys()
    for share in (0.5, 1.0):
        blend(model, start, end, share)
        for name, parameter in model.named_parameters():
            if name in end:
                torch.testing.assert_close(parameter.detach(), start[name] + share * (end[name] - start[name]))
            else:
                assert torch.equal(parameter, frozen[name])
    assert all(torch.equal(p, end[name]) for name, p in model.named_parameters() if name in end), (
        "all the way is exact"
    )
