// local: the ranks are threads of one process. For tests, debuggers and sanitizers, and a world of
// one.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/rounds/region.h"

namespace lockstep {

// One backend a rank, sharing a region on the heap. Each is used by one thread at a time; the
// region goes with the last one.
std::vector<std::unique_ptr<Backend>> make_local_backends(int size);
// With another layout than the default one, for tests of chunking.
std::vector<std::unique_ptr<Backend>> make_local_backends(const rounds::RegionShape& shape);

}  // namespace lockstep
