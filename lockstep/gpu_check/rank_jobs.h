// The jobs, each in the file of its part. Collective.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/gpu_check/options.h"
#include "lockstep/gpu_check/parts.h"

namespace lockstep::inline v0::gpu_check {

void share_memory(Communicator& comm, const Options& options, const Rows& rows);
void operations(Communicator& comm, const Options& options, const Rows& rows);
void small_operations(Communicator& comm, const Options& options, const Rows& rows);
void train_as_one(Communicator& comm, const Options& options, const Rows& rows);
void rank_is_killed(Communicator& comm, const Options& options, const Rows& rows);
void rank_stops(Communicator& comm, const Options& options, const Rows& rows);
void rank_calls_another(Communicator& comm, const Options& options, const Rows& rows);
void share_device(Communicator& comm, const Options& options, const Rows& rows);

}  // namespace lockstep::inline v0::gpu_check
