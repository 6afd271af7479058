#!/usr/bin/env python3
"""Learning rates as DeepSpeed's schedulers give them: the numbers in lockstep/optim/warmup_schedule_test.cpp.

usage: deepspeed_schedules.py [LR_SCHEDULES]

Prints one C++ row a schedule: the rates at which the steps below are taken. Needs torch, and DeepSpeed or its file
deepspeed/runtime/lr_schedules.py, which is read without the rest of the package.
"""
import importlib.util
import logging
import sys
import types

import torch

STEPS = [0, 1, 2, 3, 5, 6, 10, 11, 16, 20, 21, 25]
LR = 0.1


def schedulers():
    if len(sys.argv) < 2:
        from deepspeed.runtime import lr_schedules
        return lr_schedules
    for name in ("deepspeed", "deepspeed.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["deepspeed.utils"].logger = logging.getLogger("deepspeed")
    spec = importlib.util.spec_from_file_location("lr_schedules", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rates(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule = make(optimizer)
    result = []
    for _ in range(STEPS[-1] + 1):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [result[s] for s in STEPS]


def main():
    logging.disable(logging.WARNING)
    s = schedulers()
    rows = {
        "kWarmupLog10": lambda o: s.WarmupLR(o, warmup_num_steps=10),
        "kWarmupLinear10": lambda o: s.WarmupLR(o, warmup_min_lr=0.01, warmup_max_lr=0.05, warmup_num_steps=10,
                                                warmup_type="linear"),
        "kDecayLog10Of20": lambda o: s.WarmupDecayLR(o, 20, warmup_num_steps=10),
        "kDecayLinear5Of20": lambda o: s.WarmupDecayLR(o, 20, warmup_min_lr=0.01, warmup_max_lr=0.1, warmup_num_steps=5,
                                                       warmup_type="linear"),
        "kDecayWarmupOfOne": lambda o: s.WarmupDecayLR(o, 20, warmup_num_steps=1),
        "kCosineLog10Of20": lambda o: s.WarmupCosineLR(o, 20, warmup_num_steps=10),
        "kCosineLinear5Of20": lambda o: s.WarmupCosineLR(o, 20, warmup_min_ratio=0.25, warmup_num_steps=5,
                                                         cos_min_ratio=0.1, warmup_type="linear"),
    }
    print("// steps", STEPS)
    for name, make in rows.items():
        print(f"constexpr Rates {name} = {{{', '.join(repr(float(rate)) for rate in rates(make))}}};")


if __name__ == "__main__":
    main()
