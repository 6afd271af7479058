// local: the ranks are threads of one process, for tests, debuggers, sanitizers, and a world of
// one.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/rounds/engine.h"

namespace lockstep::inline v0 {

// One backend per rank; they share a region on the heap, which is freed with the last one.
// Thread-safety: each backend is used by one thread at a time.
std::vector<std::unique_ptr<Backend>> make_local_backends(int size);
// The same with another layout or other data paths, for tests.
std::vector<std::unique_ptr<Backend>> make_local_backends(const rounds::RegionShape& shape,
                                                          const rounds::Tuning& tuning = {});

}  // namespace lockstep::inline v0
