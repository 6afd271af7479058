"""Whether tensors of ours are those of PyTorch, for the oracles beside it."""
import copy

import torch

# Where the truth is 0, what is left of it is rounding: at most so many units in the last place of the largest value of all. It differs
# between processors, and may be nothing on one of them, so it is no scale.
ROUNDING = 64
# So many times farther from the truth than PyTorch in the same precision we may be where that is far itself.
TIMES = 4


def compare(what, found, truth, tolerance, theirs=None):
    """The largest difference of a tensor, as a part of its largest value, or, where the truth is 0, of the largest value of all
    tensors. Ends the program with one line where names, shapes or dtypes are not the same, or a difference is more than the tolerance.

    theirs: what PyTorch gives in the precision of `found`, where the truth is of a higher one. Sums that all but cancel are far from the
    truth on both sides, on some processors more than on others."""
    if sorted(found) != sorted(truth):
        raise SystemExit(f"{what}: names differ: {sorted(set(found) ^ set(truth))}")
    sizes = {name: value.abs().max().item() if value.numel() else 0 for name, value in truth.items()}
    largest = max(sizes.values(), default=0)
    worst = 0.0
    for name, value in truth.items():
        like = theirs[name] if theirs else value
        if found[name].shape != like.shape or found[name].dtype != like.dtype:
            raise SystemExit(f"{what}: {name} is {found[name].dtype} {tuple(found[name].shape)}, "
                             f"expected {like.dtype} {tuple(like.shape)}")
        if not value.numel():
            continue
        rounding = ROUNDING * torch.finfo(value.dtype).eps * largest if value.is_floating_point() else 0
        scale = sizes[name] if sizes[name] > rounding else largest or 1
        difference, of_theirs = ((one.to(value.dtype) - value).abs().max().item() / scale for one in (found[name], like))
        if not difference <= max(tolerance, TIMES * of_theirs):
            raise SystemExit(f"{what}: {name} differs by {difference:.2e} of its largest value; {tolerance:.0e} is allowed" +
                             (f", and PyTorch's differs by {of_theirs:.2e}" if theirs else ""))
        worst = max(worst, difference)
    return worst


def follow_training(model, loss_of, found, rate, tolerance):
    """Trains with AdamW in float64 and, beside it, in the model's own precision, and compares each step's loss of ours with that in float64. Ends
    the program with one line where they part by more than the tolerance, and by more than PyTorch does."""
    def losses(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        while True:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            yield loss.item()

    worst, last = 0.0, 0.0
    for step, ours, truth, theirs in zip(range(len(found)), found.tolist(), losses(copy.deepcopy(model).double()), losses(model)):
        last, difference, of_theirs = truth, abs(ours - truth), abs(theirs - truth)
        worst = max(worst, difference)
        if not difference <= max(tolerance, TIMES * of_theirs):
            raise SystemExit(f"training: the loss of step {step} differs by {difference:.2e}; {tolerance:.0e} is allowed, and PyTorch's differs by "
                             f"{of_theirs:.2e}")
    print(f"{len(found)} steps with AdamW: losses within {worst:.1e}, the last one {last:.4f}")
