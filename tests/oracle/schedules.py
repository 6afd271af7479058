#!/usr/bin/env python3
"""Learning-rate factors as transformers and PyTorch compute them: the numbers in lockstep/optim/schedule_test.cpp.

Prints one C++ row a schedule: the factors at the steps below. Needs torch and transformers.
"""
import warnings

import torch
from transformers import optimization as hf

STEPS = [0, 1, 2, 4, 5, 6, 10, 16, 19, 20, 25]


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def factors(make):
    o = optimizer()
    schedule = make(o)
    rates = []
    for _ in range(STEPS[-1] + 1):
        rates.append(o.param_groups[0]["lr"])
        o.step()
        schedule.step()
    return [rates[s] for s in STEPS]


def main():
    warnings.simplefilter("ignore")
    lr = torch.optim.lr_scheduler
    rows = {
        "kConstantWarmup5": lambda o: hf.get_constant_schedule_with_warmup(o, 5),
        "kLinear20": lambda o: hf.get_linear_schedule_with_warmup(o, 0, 20),
        "kLinear20Warmup5": lambda o: hf.get_linear_schedule_with_warmup(o, 5, 20),
        "kCosine20Warmup5": lambda o: hf.get_cosine_schedule_with_warmup(o, 5, 20),
        "kCosine20Warmup5OneWave": lambda o: hf.get_cosine_schedule_with_warmup(o, 5, 20, num_cycles=1.0),
        "kCosine20Warmup5Floor": lambda o: hf.get_cosine_with_min_lr_schedule_with_warmup(o, 5, 20, min_lr_rate=0.1),
        "kCosineAnnealing20Eta": lambda o: lr.CosineAnnealingLR(o, 20, eta_min=0.1),
        "kLinearLrFromQuarter": lambda o: lr.LinearLR(o, start_factor=0.25, total_iters=5),
    }
    print("// steps", STEPS)
    for name, make in rows.items():
        print(f"constexpr Factors {name} = {{{', '.join(repr(float(f)) for f in factors(make))}}};")


if __name__ == "__main__":
    main()
