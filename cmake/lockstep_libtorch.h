// What LOCKSTEP_PRECOMPILE parses once: the headers of libtorch that take long and that many files include.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <torch/utils.h>
