// local: the ranks are threads of one process. For tests, debuggers and sanitizers, and a world of
// one.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/rounds/engine.h"

namespace lockstep {

// One backend a rank, sharing a region on the heap. Each is used by one thread at a time; the
// region goes with the last one.
std::vector<std::unique_ptr<Backend>> make_local_backends(int size);
// With another layout or other ways of moving data than by default, for tests.
std::vector<std::unique_ptr<Backend>> make_local_backends(const rounds::RegionShape& shape,
                                                          const rounds::Tuning& tuning = {});

}  // namespace lockstep
