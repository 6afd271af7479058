// Everything that a training program needs. Narrower headers compile faster; see docs/building.md.
#pragma once

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/comm/algorithms/ring.h"
#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/functional.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/partition.h"
#include "lockstep/data/sampler.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/parallel/ddp/average_gradients.h"
#include "lockstep/parallel/ddp/ddp.h"
